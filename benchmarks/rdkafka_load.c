/* Produces or consumes N messages with librdkafka, and prints how long that took.
 *
 *     rdkafka_load produce|consume BOOTSTRAP TOPIC COUNT SIZE [property=value ...]
 *     rdkafka_load transact BOOTSTRAP TOPIC COUNT SIZE commit.ms=N [property=value ...]
 *
 * `transact` produces in transactions, and commits every N milliseconds; it prints how long each
 * commit took, too.
 * Everything goes to partition 0. One line of JSON on standard output; 1 and a reason on standard
 * error if a message was lost. A first message is moved before the clock starts, so that connecting
 * does not count; it stops when the last one is acknowledged, or here.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if __has_include(<librdkafka/rdkafka.h>)
#include <librdkafka/rdkafka.h>
#else
/* Without the header, the part of librdkafka's stable interface that is used here: enough for the
 * library that comes inside the confluent-kafka wheel. */
#include <sys/types.h>
typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef int rd_kafka_resp_err_t;
typedef struct rd_kafka_message_s {
        rd_kafka_resp_err_t err;
        rd_kafka_topic_t *rkt;
        int32_t partition;
        void *payload;
        size_t len;
        void *key;
        size_t key_len;
        int64_t offset;
        void *_private;
} rd_kafka_message_t;
enum { RD_KAFKA_PRODUCER, RD_KAFKA_CONSUMER };
#define RD_KAFKA_CONF_OK 0
#define RD_KAFKA_OFFSET_BEGINNING (-2)
#define RD_KAFKA_RESP_ERR__PARTITION_EOF (-191)
#define RD_KAFKA_RESP_ERR__QUEUE_FULL (-184)
rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *,
                                 void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
void rd_kafka_destroy(rd_kafka_t *);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, rd_kafka_topic_conf_t *);
void rd_kafka_topic_destroy(rd_kafka_topic_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t,
                     void *);
int rd_kafka_poll(rd_kafka_t *, int);
rd_kafka_resp_err_t rd_kafka_flush(rd_kafka_t *, int);
rd_kafka_resp_err_t rd_kafka_last_error(void);
const char *rd_kafka_err2str(rd_kafka_resp_err_t);
int rd_kafka_consume_start(rd_kafka_topic_t *, int32_t, int64_t);
int rd_kafka_consume_stop(rd_kafka_topic_t *, int32_t);
ssize_t rd_kafka_consume_batch(rd_kafka_topic_t *, int32_t, int, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);
const char *rd_kafka_version_str(void);
typedef struct rd_kafka_error_s rd_kafka_error_t;
rd_kafka_error_t *rd_kafka_init_transactions(rd_kafka_t *, int);
rd_kafka_error_t *rd_kafka_begin_transaction(rd_kafka_t *);
rd_kafka_error_t *rd_kafka_commit_transaction(rd_kafka_t *, int);
const char *rd_kafka_error_string(const rd_kafka_error_t *);
#endif

enum {
        POLL_MS = 100,
        FLUSH_MS_MAX = 60000,
        SILENT_POLLS_MAX = 100,
        MESSAGES_PER_POLL = 10000,
        COMMITS_MAX = 100000
};

static int64_t failures = 0;
static const char *reason = "";

static void die(const char *what, const char *why) {
        fprintf(stderr, "rdkafka_load: %s: %s\n", what, why);
        exit(1);
}

static double now_seconds(void) {
        struct timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* With delivery.report.only.error this hears of lost messages alone. */
static void on_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
        (void)client;
        (void)opaque;
        if (message->err) {
                failures++;
                reason = rd_kafka_err2str(message->err);
        }
}

static void flush(rd_kafka_t *client) {
        rd_kafka_resp_err_t left = rd_kafka_flush(client, FLUSH_MS_MAX);
        if (left)
                die("flush", rd_kafka_err2str(left));
}

static double produce(rd_kafka_t *client, rd_kafka_topic_t *topic, int64_t count, size_t size) {
        char *value = malloc(size ? size : 1); /* shared by all messages: nothing is copied */
        memset(value, 't', size);
        if (rd_kafka_produce(topic, 0, 0, value, size, NULL, 0, NULL))
                die("produce", rd_kafka_err2str(rd_kafka_last_error()));
        flush(client);
        double started = now_seconds();
        for (int64_t sent = 1; sent < count;) {
                if (rd_kafka_produce(topic, 0, 0, value, size, NULL, 0, NULL) == 0) {
                        if (++sent % 1000 == 0)
                                rd_kafka_poll(client, 0);
                } else if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
                        rd_kafka_poll(client, 1);
                } else {
                        die("produce", rd_kafka_err2str(rd_kafka_last_error()));
                }
        }
        flush(client);
        double seconds = now_seconds() - started;
        free(value);
        return seconds;
}

static double commits[COMMITS_MAX];
static int commit_count = 0;

static void must(rd_kafka_error_t *error, const char *what) {
        if (error)
                die(what, rd_kafka_error_string(error));
}

static void commit(rd_kafka_t *client) {
        double began = now_seconds();
        must(rd_kafka_commit_transaction(client, FLUSH_MS_MAX), "commit");
        if (commit_count < COMMITS_MAX)
                commits[commit_count++] = now_seconds() - began;
}

static double transact(rd_kafka_t *client, rd_kafka_topic_t *topic, int64_t count, size_t size,
                       double interval) {
        char *value = malloc(size ? size : 1);
        memset(value, 't', size);
        must(rd_kafka_init_transactions(client, FLUSH_MS_MAX), "init_transactions");
        must(rd_kafka_begin_transaction(client), "begin");
        if (rd_kafka_produce(topic, 0, 0, value, size, NULL, 0, NULL))
                die("produce", rd_kafka_err2str(rd_kafka_last_error()));
        commit(client);
        commit_count = 0;
        must(rd_kafka_begin_transaction(client), "begin");
        double started = now_seconds(), due = started + interval;
        for (int64_t sent = 1; sent < count;) {
                if (rd_kafka_produce(topic, 0, 0, value, size, NULL, 0, NULL) == 0) {
                        if (++sent % 1000 == 0)
                                rd_kafka_poll(client, 0);
                } else if (rd_kafka_last_error() == RD_KAFKA_RESP_ERR__QUEUE_FULL) {
                        rd_kafka_poll(client, 1);
                } else {
                        die("produce", rd_kafka_err2str(rd_kafka_last_error()));
                }
                if (sent % 100 == 0 && now_seconds() >= due) {
                        commit(client);
                        must(rd_kafka_begin_transaction(client), "begin");
                        due = now_seconds() + interval;
                }
        }
        commit(client);
        double seconds = now_seconds() - started;
        free(value);
        return seconds;
}

static double consume(rd_kafka_topic_t *topic, int64_t count) {
        static rd_kafka_message_t *messages[MESSAGES_PER_POLL];
        int silent = 0;
        double started = 0;
        if (rd_kafka_consume_start(topic, 0, RD_KAFKA_OFFSET_BEGINNING))
                die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        for (int64_t received = 0; received < count;) {
                ssize_t found = rd_kafka_consume_batch(topic, 0, POLL_MS, messages,
                                                       received ? MESSAGES_PER_POLL : 1);
                if (found < 0)
                        die("consume", rd_kafka_err2str(rd_kafka_last_error()));
                silent = found ? 0 : silent + 1;
                if (silent > SILENT_POLLS_MAX)
                        die("consume", "no message for 10 seconds");
                for (ssize_t at = 0; at < found; at++) {
                        rd_kafka_resp_err_t error = messages[at]->err;
                        if (!error)
                                received++;
                        else if (error != RD_KAFKA_RESP_ERR__PARTITION_EOF)
                                die("consume", rd_kafka_err2str(error));
                        rd_kafka_message_destroy(messages[at]);
                }
                if (!started && received)
                        started = now_seconds();
        }
        double seconds = now_seconds() - started;
        rd_kafka_consume_stop(topic, 0);
        return seconds;
}

int main(int argc, char **argv) {
        char error[512];
        if (argc < 6)
                die("usage", "produce|consume|transact BOOTSTRAP TOPIC COUNT SIZE [property=value ...]");
        int transacts = strcmp(argv[1], "transact") == 0;
        int produces = transacts || strcmp(argv[1], "produce") == 0;
        double interval = 0.1;
        int64_t count = strtoll(argv[4], NULL, 10);
        size_t size = strtoull(argv[5], NULL, 10);

        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        if (rd_kafka_conf_set(conf, "bootstrap.servers", argv[2], error, sizeof error))
                die("bootstrap.servers", error);
        for (int at = 6; at < argc; at++) {
                char *equals = strchr(argv[at], '=');
                if (!equals)
                        die(argv[at], "it must be property=value");
                *equals = '\0';
                if (strcmp(argv[at], "commit.ms") == 0) {
                        interval = strtod(equals + 1, NULL) / 1000;
                        continue;
                }
                if (rd_kafka_conf_set(conf, argv[at], equals + 1, error, sizeof error))
                        die(argv[at], error);
        }
        if (produces)
                rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
        rd_kafka_t *client = rd_kafka_new(produces ? RD_KAFKA_PRODUCER : RD_KAFKA_CONSUMER, conf,
                                          error, sizeof error);
        if (!client)
                die("rd_kafka_new", error);
        rd_kafka_topic_t *topic = rd_kafka_topic_new(client, argv[3], NULL);
        if (!topic)
                die("topic", rd_kafka_err2str(rd_kafka_last_error()));

        double seconds = transacts  ? transact(client, topic, count, size, interval)
                         : produces ? produce(client, topic, count, size)
                                    : consume(topic, count);
        rd_kafka_topic_destroy(topic);
        rd_kafka_destroy(client);
        if (failures)
                die("messages were lost", reason);
        printf("{\"messages\": %" PRId64 ", \"seconds\": %.6f, \"version\": \"%s\"",
               count - 1, seconds, rd_kafka_version_str());
        printf(", \"commits\": [");
        for (int at = 0; at < commit_count; at++)
                printf("%s%.6f", at ? ", " : "", commits[at]);
        printf("]}\n");
        return 0;
}
