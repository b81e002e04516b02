/* Keeps one request under way on each of its connections, and prints how long each took.
 *
 *     closed_load http|redis|nats|amqp SECONDS TURNS_MAX < plan
 *
 * The connections are open already: whoever starts this program has said on them whatever comes
 * before the first request, and hands them down. The plan, in lines whose bytes follow them:
 *
 *     plan    := program* connection*
 *     program := "program" REQUESTS SETTLES TAG_AT "\n" string{REQUESTS} settling{SETTLES}
 *     settling := OPEN:string CLOSE:string HEAD:string EXTRA:string BEFORE:string AFTER:string
 *     string  := LENGTH "\n" bytes
 *     connection := "connection" FD PROGRAM START "\n"
 *
 * A connection goes through the requests of its program, from START on and again. With a settling,
 * each answer is followed by a second request, made of what stands between OPEN and CLOSE in the
 * answer: HEAD, its length plus EXTRA in digits if HEAD is not empty, BEFORE, itself, AFTER. A turn
 * is both. TAG_AT, if it is not negative, is where each request has the number of its turn, as 8
 * bytes: AMQP counts its messages so.
 *
 * One line of JSON: turns, seconds, and percentiles in milliseconds. A refusal ends it with status 1
 * and a reason on standard error.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024
#define ANSWER_MAX (4u << 20)
#define SILENT_MS 30000

struct bytes {
        char *data;
        size_t size;
};

struct program {
        struct bytes *requests;
        long count, settles, tag_at;
        struct bytes open, close, head, before, after;
        long extra;
};

struct connection {
        int fd;
        struct program *program;
        long at;
        uint64_t tag;
        int is_settling;
        double began;
        char *got;
        size_t size, room;
};

static struct program *programs;
static size_t program_count;
static struct connection connections[CONNECTIONS_MAX];
static int connection_count;
static double *samples;
static size_t sample_count, sample_room;

static void fail(const char *why, const char *data, size_t size) {
        fprintf(stderr, "closed_load: %s: %.*s\n", why, (int)(size < 300 ? size : 300), data);
        exit(1);
}

static void *grown(void *old, size_t size) {
        void *found = realloc(old, size);
        if (!found)
                fail("no memory", "", 0);
        return found;
}

static double now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec + t.tv_nsec / 1e9;
}

/* The ends of answers: how many bytes the one at the beginning has, or 0 if it is not whole. */

static size_t http_answer(const char *data, size_t size) {
        const char *end = memmem(data, size, "\r\n\r\n", 4);
        if (!end)
                return 0;
        const char *length = memmem(data, end - data, "\r\ncontent-length: ", 18);
        if (!length)
                fail("an answer without a length", data, size);
        size_t whole = end - data + 4 + strtoul(length + 18, NULL, 10);
        if (size < whole)
                return 0;
        if (data[9] != '2')
                fail("refused", data, whole);
        return whole;
}

static size_t redis_answer(const char *data, size_t size) {
        const char *end = memmem(data, size, "\r\n", 2);
        if (!end)
                return 0;
        size_t at = end - data + 2;
        if (data[0] == '-' || ((data[0] == '$' || data[0] == '*') && data[1] == '-'))
                fail("refused", data, at);
        if (data[0] == '$') {
                at += strtoul(data + 1, NULL, 10) + 2;
        } else if (data[0] == '*') {
                for (long left = strtol(data + 1, NULL, 10); left > 0; left--) {
                        size_t one = size > at ? redis_answer(data + at, size - at) : 0;
                        if (!one)
                                return 0;
                        at += one;
                }
        }
        return at <= size ? at : 0;
}

static size_t nats_answer(const char *data, size_t size) {
        const char *end = memmem(data, size, "\r\n", 2);
        if (!end)
                return 0;
        size_t head = end - data + 2;
        if (data[0] == '-')
                fail("refused", data, head);
        if (memcmp(data, "MSG ", 4) && memcmp(data, "HMSG", 4))
                return head; /* +OK, INFO, PING: not what was asked for */
        const char *digits = memrchr(data, ' ', end - data);
        size_t whole = head + strtoul(digits + 1, NULL, 10) + 2;
        if (size < whole)
                return 0;
        if (memmem(data, whole, "\"error\":", 8) || memmem(data, whole, "NATS/1.0 4", 10) ||
            memmem(data, whole, "NATS/1.0 5", 10))
                fail("refused", data, whole);
        return whole;
}

static size_t amqp_answer(const char *data, size_t size) {
        if (size < 8)
                return 0;
        const unsigned char *u = (const unsigned char *)data;
        size_t whole = 8 + ((size_t)u[3] << 24 | u[4] << 16 | u[5] << 8 | u[6]);
        if (size < whole)
                return 0;
        /* a channel or a connection that is closed, or a message that is not kept */
        if (u[0] == 1 && (u[8] != 60 || u[10] == 120 || u[10] == 50))
                fail("refused", data + 11, whole - 12);
        return whole;
}

/* Whether the answer that was found is one to what was asked, and not said by the way. */

static int nats_counts(struct connection *c, const char *data) {
        if (data[0] == 'P' && write(c->fd, "PONG\r\n", 6) != 6)
                fail("cannot write", "", 0);
        return data[0] == 'M' || data[0] == 'H';
}

static int amqp_counts(const char *data) {
        return data[0] == 3 || (data[0] == 1 && data[10] == 80);
}

static enum { HTTP, REDIS, NATS, AMQP } kind;

static size_t answer(const char *data, size_t size) {
        switch (kind) {
        case HTTP: return http_answer(data, size);
        case REDIS: return redis_answer(data, size);
        case NATS: return nats_answer(data, size);
        default: return amqp_answer(data, size);
        }
}

static int counts(struct connection *c, const char *data) {
        return kind == NATS ? nats_counts(c, data) : kind == AMQP ? amqp_counts(data) : 1;
}

/* Turns. */

static void send_all(struct connection *c, const char *data, size_t size) {
        while (size) {
                ssize_t sent = write(c->fd, data, size);
                if (sent < 0 && errno == EAGAIN)
                        continue; /* requests are small: there is room at once */
                if (sent < 0)
                        fail("cannot write", strerror(errno), 80);
                data += sent, size -= sent;
        }
}

static void ask(struct connection *c, double at) {
        struct program *p = c->program;
        struct bytes *request = &p->requests[c->at++ % p->count];
        c->began = at;
        c->tag++;
        if (p->tag_at >= 0)
                for (int i = 0; i < 8; i++)
                        request->data[p->tag_at + i] = (char)(c->tag >> (56 - 8 * i));
        send_all(c, request->data, request->size);
}

static void settle(struct connection *c, const char *data, size_t size) {
        struct program *p = c->program;
        char *open = memmem(data, size, p->open.data, p->open.size), *close = NULL;
        if (open) {
                open += p->open.size;
                close = memmem(open, data + size - open, p->close.data, p->close.size);
        }
        if (!close)
                fail("nothing to settle", data, size);
        static char request[1 << 16];
        size_t token = close - open, at = p->head.size;
        if (at + token + p->before.size + p->after.size + 32 > sizeof request)
                fail("too long to settle", data, size);
        memcpy(request, p->head.data, at);
        if (at)
                at += sprintf(request + at, "%zu", token + p->extra);
        memcpy(request + at, p->before.data, p->before.size), at += p->before.size;
        memcpy(request + at, open, token), at += token;
        memcpy(request + at, p->after.data, p->after.size), at += p->after.size;
        send_all(c, request, at);
}

static int in_flight;

static void on_answer(struct connection *c, const char *data, size_t size, double stop_at, size_t max) {
        if (c->program->settles && !c->is_settling) {
                settle(c, data, size);
                c->is_settling = 1;
                return;
        }
        c->is_settling = 0;
        double at = now();
        if (sample_count == sample_room)
                samples = grown(samples, (sample_room = 2 * sample_room + 4096) * sizeof *samples);
        samples[sample_count++] = at - c->began;
        if (at < stop_at && sample_count + in_flight <= max)
                ask(c, at);
        else
                in_flight--;
}

static void receive(struct connection *c, double stop_at, size_t max) {
        if (c->room - c->size < 1 << 16)
                c->got = grown(c->got, c->room = 2 * c->room + (1 << 17));
        ssize_t came = read(c->fd, c->got + c->size, c->room - c->size);
        if (came < 0 && errno == EAGAIN)
                return;
        if (came <= 0)
                fail("the server closed the connection", "", 0);
        c->size += came;
        if (c->size > ANSWER_MAX)
                fail("too long an answer", c->got, c->size);
        size_t at = 0, whole;
        while (at < c->size && (whole = answer(c->got + at, c->size - at))) {
                if (counts(c, c->got + at))
                        on_answer(c, c->got + at, whole, stop_at, max);
                at += whole;
        }
        memmove(c->got, c->got + at, c->size -= at);
}

/* The plan. */

static struct bytes string(void) {
        size_t size;
        if (scanf("%zu", &size) != 1 || getchar() != '\n')
                fail("a plan that is none", "", 0);
        struct bytes found = {grown(NULL, size + 1), size};
        if (fread(found.data, 1, size, stdin) != size)
                fail("a plan without its end", "", 0);
        return found;
}

static void read_plan(void) {
        char word[16];
        while (scanf(" %15s", word) == 1) {
                if (!strcmp(word, "connection")) {
                        struct connection *c = &connections[connection_count++];
                        size_t program;
                        if (connection_count > CONNECTIONS_MAX ||
                            scanf("%d %zu %ld", &c->fd, &program, &c->at) != 3 || program >= program_count)
                                fail("not such a connection", word, sizeof word);
                        c->program = &programs[program];
                        continue;
                }
                programs = grown(programs, (program_count + 1) * sizeof *programs);
                struct program *p = &programs[program_count++];
                if (scanf("%ld %ld %ld", &p->count, &p->settles, &p->tag_at) != 3 || getchar() != '\n')
                        fail("not such a program", word, sizeof word);
                p->requests = grown(NULL, p->count * sizeof *p->requests);
                for (long i = 0; i < p->count; i++)
                        p->requests[i] = string();
                if (p->settles) {
                        p->open = string(), p->close = string(), p->head = string();
                        p->extra = strtol(string().data, NULL, 10);
                        p->before = string(), p->after = string();
                }
        }
}

static int by_size(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;
        return x < y ? -1 : x > y;
}

static double share(double part) {
        size_t at = part * sample_count;
        return 1000 * samples[at < sample_count ? at : sample_count - 1];
}

int main(int argc, char **argv) {
        static const char *const kinds[] = {"http", "redis", "nats", "amqp"};
        if (argc != 4)
                fail("usage", "closed_load KIND SECONDS TURNS_MAX < plan", 60);
        for (int i = 0; i < 4; i++)
                if (!strcmp(argv[1], kinds[i]))
                        kind = i;
        size_t max = strtoul(argv[3], NULL, 10);
        read_plan();
        int epoll = epoll_create1(0);
        for (int i = 0; i < connection_count; i++) {
                struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
                epoll_ctl(epoll, EPOLL_CTL_ADD, connections[i].fd, &event);
        }
        double started = now(), stop_at = started + strtod(argv[2], NULL);
        for (int i = 0; i < connection_count && sample_count + in_flight < max; i++) {
                in_flight++;
                ask(&connections[i], now());
        }
        while (in_flight) {
                struct epoll_event events[64];
                int count = epoll_wait(epoll, events, 64, SILENT_MS);
                if (count == 0)
                        fail("nothing more came", "", 0);
                for (int i = 0; i < count; i++)
                        receive(events[i].data.ptr, stop_at, max);
        }
        double seconds = now() - started;
        if (!sample_count)
                fail("nothing was asked for", "", 0);
        qsort(samples, sample_count, sizeof *samples, by_size);
        printf("{\"turns\": %zu, \"seconds\": %.6f, \"p50\": %.6f, \"p95\": %.6f, \"p99\": %.6f, "
               "\"max\": %.6f}\n",
               sample_count, seconds, share(0.5), share(0.95), share(0.99), share(1.0));
        return 0;
}
