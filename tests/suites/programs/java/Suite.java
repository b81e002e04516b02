// What a user of Kafka's Java client does, counted. Prints one JSON line per check, then
// {"done": true}. Usage: java Suite HOST:PORT

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class Suite {
    private static final long CHECK_SECONDS_MAX = 90;
    private static final Duration POLL = Duration.ofMillis(100);

    private static String bootstrap;
    private static int topics = 0;

    interface Body {
        void run() throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        producerChecks();
        transactionChecks();
        consumerChecks();
        groupChecks();
        adminChecks();
        System.out.println("{\"done\": true}");
        System.out.flush();
        System.exit(0); // a check that failed may have left a thread running
    }

    // Producers

    private static void producerChecks() {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            check("keys, values, headers and times come back with codec " + codec, () -> {
                String topic = makeTopic(1);
                try (Producer<String, String> producer = producer(Map.of(
                        "compression.type", codec, "linger.ms", "20"))) {
                    for (int i = 0; i < 2000; i++) {
                        ProducerRecord<String, String> record = new ProducerRecord<>(
                                topic, 0, 1_700_000_000_000L + i, i % 3 == 0 ? null : "k" + i,
                                i % 5 == 0 ? null : "v".repeat(i % 300) + i);
                        record.headers().add("h", ("h" + i).getBytes(StandardCharsets.UTF_8));
                        producer.send(record);
                    }
                }
                List<ConsumerRecord<String, String>> got = readAll(topic, 2000);
                for (int i = 0; i < 2000; i++) {
                    ConsumerRecord<String, String> record = got.get(i);
                    same((long) i, record.offset());
                    same(i % 3 == 0 ? null : "k" + i, record.key());
                    same(i % 5 == 0 ? null : "v".repeat(i % 300) + i, record.value());
                    same(1_700_000_000_000L + i, record.timestamp());
                    same("h" + i, new String(record.headers().lastHeader("h").value(), StandardCharsets.UTF_8));
                }
            });
        }
        for (String acks : List.of("0", "1", "all")) {
            check("acks=" + acks + " delivers", () -> {
                String topic = makeTopic(1);
                produce(topic, 0, range(0, 500), Map.of("acks", acks, "enable.idempotence", "false"));
                same(range(0, 500), values(readAll(topic, 500)));
            });
        }
        check("an idempotent producer keeps order with five requests in flight", () -> {
            String topic = makeTopic(1);
            produce(topic, 0, range(0, 20_000), Map.of("enable.idempotence", "true", "acks", "all",
                    "max.in.flight.requests.per.connection", "5", "batch.size", "500", "linger.ms", "0"));
            same(range(0, 20_000), values(readAll(topic, 20_000)));
        });
        check("a producer learns offsets and log append time", () -> {
            String topic = makeTopic(1, Map.of("message.timestamp.type", "LogAppendTime"));
            try (Producer<String, String> producer = producer(Map.of())) {
                long before = System.currentTimeMillis();
                for (long i = 0; i < 3; i++) {
                    RecordMetadata written = producer.send(new ProducerRecord<>(topic, 0, 5L, "k", "v")).get();
                    same(i, written.offset());
                    ensure(written.timestamp() >= before, "stamped by the broker");
                }
            }
            ConsumerRecord<String, String> first = readAll(topic, 3).get(0);
            same("LogAppendTime", first.timestampType().toString());
        });
        check("a message over the limit is refused", () -> {
            String topic = makeTopic(1);
            try (Producer<String, String> producer = producer(Map.of("max.request.size", "5000000"))) {
                refused(RecordTooLargeException.class,
                        producer.send(new ProducerRecord<>(topic, "x".repeat(2_000_000))));
                same(0L, producer.send(new ProducerRecord<>(topic, "small")).get().offset());
            }
        });
        check("a topic is made by the first produce", () -> {
            produce("made-by-java", 0, range(0, 3), Map.of());
            same(range(0, 3), values(readAll("made-by-java", 3)));
        });
        check("a compressed batch survives rolling segments", () -> {
            String topic = makeTopic(1, Map.of("segment.bytes", "1048576"));
            List<String> sent = IntStream.range(0, 3000).mapToObj(i -> i + "y".repeat(1500)).toList();
            produce(topic, 0, sent, Map.of("batch.size", "100000", "linger.ms", "5"));
            same(sent, values(readAll(topic, 3000)));
        });
    }

    // Transactions

    private static void transactionChecks() {
        check("readers of committed records see commits and no aborts", () -> {
            String topic = makeTopic(3);
            try (Producer<String, String> producer = transactional(topic)) {
                producer.initTransactions();
                for (int round = 0; round < 10; round++) {
                    producer.beginTransaction();
                    for (int i = 0; i < 30; i++) {
                        producer.send(new ProducerRecord<>(topic, i % 3, null, round + "-" + i));
                    }
                    producer.flush();
                    if (round % 2 == 0) {
                        producer.commitTransaction();
                    } else {
                        producer.abortTransaction();
                    }
                }
            }
            Set<String> committed = new TreeSet<>();
            for (int round = 0; round < 10; round += 2) {
                for (int i = 0; i < 30; i++) {
                    committed.add(round + "-" + i);
                }
            }
            List<String> got = readTopic(topic, 3, "read_committed", 150);
            same(committed, new TreeSet<>(got));
            same(150, got.size());
            same(300, readTopic(topic, 3, "read_uncommitted", 300).size());
        });
        check("a transaction holds back readers until it is decided", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            try (Producer<String, String> producer = transactional(topic);
                    Consumer<String, String> reader = consumer(Map.of("isolation.level", "read_committed"))) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "inside"));
                producer.flush();
                produce(topic, 0, List.of("after"), Map.of());
                reader.assign(List.of(partition));
                same(0, reader.poll(Duration.ofMillis(500)).count());
                same(0L, reader.endOffsets(List.of(partition)).get(partition));
                producer.commitTransaction();
                same(List.of("inside", "after"), values(poll(reader, 2)));
            }
        });
        check("inputs are transformed once, with the offsets in the transaction", () -> {
            String input = makeTopic(2);
            String output = makeTopic(2);
            produce(input, 0, range(0, 200), Map.of());
            produce(input, 1, range(200, 400), Map.of());
            Map<String, String> config = Map.of("group.id", "g-" + input, "enable.auto.commit", "false",
                    "isolation.level", "read_committed", "max.poll.records", "25");
            int attempts = 0;
            int done = 0;
            try (Producer<String, String> producer = transactional(input)) {
                producer.initTransactions();
                while (done < 400) {
                    // Every other consumer gives up after its first batch, which is aborted.
                    boolean aborts = attempts++ % 2 == 0;
                    try (Consumer<String, String> consumer = consumer(config)) {
                        consumer.subscribe(List.of(input));
                        do {
                            List<ConsumerRecord<String, String>> records = poll(consumer, 1);
                            producer.beginTransaction();
                            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                            for (ConsumerRecord<String, String> record : records) {
                                producer.send(new ProducerRecord<>(output, record.value()));
                                offsets.put(new TopicPartition(input, record.partition()),
                                        new OffsetAndMetadata(record.offset() + 1));
                            }
                            producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                            if (aborts) {
                                producer.flush();
                                producer.abortTransaction();
                            } else {
                                producer.commitTransaction();
                                done += records.size();
                            }
                        } while (!aborts && done < 400 && done % 100 != 0);
                    }
                }
            }
            List<String> got = readTopic(output, 2, "read_committed", 400);
            same(new TreeSet<>(range(0, 400)), new TreeSet<>(got));
            same(400, got.size());
            try (Admin admin = admin()) {
                Map<TopicPartition, OffsetAndMetadata> offsets =
                        admin.listConsumerGroupOffsets("g-" + input).partitionsToOffsetAndMetadata().get();
                same(200L, offsets.get(new TopicPartition(input, 0)).offset());
                same(200L, offsets.get(new TopicPartition(input, 1)).offset());
            }
        });
        check("a new producer fences the old one of its id", () -> {
            String topic = makeTopic(1);
            try (Producer<String, String> old = transactional(topic); Producer<String, String> next = transactional(topic)) {
                old.initTransactions();
                old.beginTransaction();
                old.send(new ProducerRecord<>(topic, "old"));
                old.flush();
                next.initTransactions();
                fenced(() -> {
                    old.send(new ProducerRecord<>(topic, "older"));
                    old.commitTransaction();
                });
                next.beginTransaction();
                next.send(new ProducerRecord<>(topic, "new"));
                next.commitTransaction();
            }
            same(List.of("new"), readTopic(topic, 1, "read_committed", 1));
        });
        check("a transaction that takes too long is aborted", () -> {
            String topic = makeTopic(1);
            Map<String, String> config = with(transactionalConfig(topic), "transaction.timeout.ms", "1000");
            try (Producer<String, String> producer = producer(config)) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "late"));
                producer.flush();
                produce(topic, 0, List.of("after"), Map.of());
                same(List.of("after"), readTopic(topic, 1, "read_committed", 1));
                fenced(producer::commitTransaction);
            }
        });
        check("a timeout above the maximum is refused", () -> {
            Map<String, String> config = with(transactionalConfig("slow"), "transaction.timeout.ms", "900001");
            try (Producer<String, String> producer = producer(config)) {
                try {
                    producer.initTransactions();
                } catch (KafkaException error) {
                    ensure(error.getMessage().contains("transaction.max.timeout.ms"), error.getMessage());
                    return;
                }
                throw new AssertionError("not refused");
            }
        });
        check("each transaction has an epoch of its own", () -> {
            String topic = makeTopic(1);
            try (Admin admin = admin(); Producer<String, String> producer = transactional(topic)) {
                producer.initTransactions();
                List<Integer> epochs = new ArrayList<>();
                for (int round = 0; round < 3; round++) {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(topic, "value"));
                    producer.flush();
                    epochs.add(admin.describeTransactions(List.of(topic)).description(topic).get().producerEpoch());
                    producer.commitTransaction();
                }
                same(List.of(0, 1, 2), epochs);
            }
        });
        check("admin lists, describes and aborts transactions", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            try (Admin admin = admin(); Producer<String, String> producer = transactional(topic)) {
                producer.initTransactions();
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "open"));
                producer.flush();
                Map<String, TransactionState> listed = new HashMap<>();
                admin.listTransactions().all().get().forEach(one -> listed.put(one.transactionalId(), one.state()));
                same(TransactionState.ONGOING, listed.get(topic));
                TransactionDescription described =
                        admin.describeTransactions(List.of(topic)).description(topic).get();
                same(Set.of(partition), described.topicPartitions());
                same(60_000L, described.transactionTimeoutMs());
                ProducerState writer = admin.describeProducers(List.of(partition)).partitionResult(partition).get()
                        .activeProducers().get(0);
                same(described.producerId(), writer.producerId());
                same(0L, writer.currentTransactionStartOffset().getAsLong());
                admin.fenceProducers(List.of(topic)).all().get();
                fenced(producer::commitTransaction);
                until("it is aborted", () -> {
                    try {
                        TransactionState state = admin.describeTransactions(List.of(topic)).description(topic).get().state();
                        return state == TransactionState.COMPLETE_ABORT || state == TransactionState.EMPTY;
                    } catch (Exception error) {
                        throw new AssertionError(error);
                    }
                });
            }
        });
    }

    private static Map<String, String> transactionalConfig(String id) {
        return Map.of("transactional.id", id, "max.block.ms", "20000", "delivery.timeout.ms", "15000");
    }

    private static Producer<String, String> transactional(String id) {
        return producer(transactionalConfig(id));
    }

    private static void fenced(Body body) throws Exception {
        try {
            body.run();
        } catch (ProducerFencedException | InvalidProducerEpochException error) {
            return;
        } catch (KafkaException error) {
            Throwable cause = error.getCause();
            if (cause instanceof ProducerFencedException || cause instanceof InvalidProducerEpochException) {
                return;
            }
            throw error;
        }
        throw new AssertionError("not fenced");
    }

    // Everything in a topic that such a reader gets to see, which is so many records.
    private static List<String> readTopic(String topic, int partitions, String isolation, int count) {
        try (Consumer<String, String> consumer = consumer(Map.of("isolation.level", isolation))) {
            List<TopicPartition> all =
                    IntStream.range(0, partitions).mapToObj(p -> new TopicPartition(topic, p)).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            List<String> got = new ArrayList<>(values(poll(consumer, count)));
            consumer.poll(Duration.ofMillis(300)).forEach(record -> got.add(record.value()));
            return got;
        }
    }

    // Consumers with assigned partitions

    private static void consumerChecks() {
        check("assign, seek and position", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            produce(topic, 0, range(0, 100), Map.of());
            try (Consumer<String, String> consumer = consumer(Map.of())) {
                consumer.assign(List.of(partition));
                consumer.seekToBeginning(List.of(partition));
                same(0L, consumer.position(partition));
                consumer.seek(partition, 90);
                same(range(90, 100), values(poll(consumer, 10)));
                same(100L, consumer.position(partition));
                consumer.seekToEnd(List.of(partition));
                same(100L, consumer.position(partition));
                consumer.seek(partition, 42);
                same("42", poll(consumer, 1).get(0).value());
            }
        });
        check("beginning and end offsets, and offsets for times", () -> {
            String topic = makeTopic(2);
            TopicPartition zero = new TopicPartition(topic, 0);
            TopicPartition one = new TopicPartition(topic, 1);
            try (Producer<String, String> producer = producer(Map.of())) {
                for (int i = 0; i < 10; i++) {
                    producer.send(new ProducerRecord<>(topic, 0, 1000L * (i + 1), null, "" + i)).get();
                }
            }
            try (Consumer<String, String> consumer = consumer(Map.of())) {
                same(Map.of(zero, 0L, one, 0L), consumer.beginningOffsets(List.of(zero, one)));
                same(Map.of(zero, 10L, one, 0L), consumer.endOffsets(List.of(zero, one)));
                Map<TopicPartition, OffsetAndTimestamp> found =
                        consumer.offsetsForTimes(Map.of(zero, 4500L, one, 0L));
                same(4L, found.get(zero).offset());
                same(5000L, found.get(zero).timestamp());
                same(null, found.get(one));
                same(null, consumer.offsetsForTimes(Map.of(zero, 10_001L)).get(zero));
            }
        });
        check("an offset out of range resets or raises", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            produce(topic, 0, range(0, 5), Map.of());
            try (Consumer<String, String> consumer = consumer(Map.of("auto.offset.reset", "none"))) {
                consumer.assign(List.of(partition));
                consumer.seek(partition, 1000);
                try {
                    poll(consumer, 1);
                    throw new AssertionError("nothing was raised");
                } catch (org.apache.kafka.clients.consumer.OffsetOutOfRangeException expected) {
                    same(Set.of(partition), expected.offsetOutOfRangePartitions().keySet());
                }
            }
            try (Consumer<String, String> consumer = consumer(Map.of())) {
                consumer.assign(List.of(partition));
                consumer.seek(partition, 1000);
                same("0", poll(consumer, 1).get(0).value());
            }
        });
        check("a small fetch.max.bytes still makes progress", () -> {
            String topic = makeTopic(1);
            List<String> sent = IntStream.range(0, 20).mapToObj(i -> i + "z".repeat(50_000)).toList();
            produce(topic, 0, sent, Map.of());
            try (Consumer<String, String> consumer = consumer(Map.of(
                    "fetch.max.bytes", "1000", "max.partition.fetch.bytes", "1000"))) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                same(sent, values(poll(consumer, 20)));
            }
        });
        check("an isolated reader sees what is not transactional", () -> {
            String topic = makeTopic(1);
            produce(topic, 0, range(0, 10), Map.of());
            try (Consumer<String, String> consumer = consumer(Map.of("isolation.level", "read_committed"))) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                same(range(0, 10), values(poll(consumer, 10)));
            }
        });
        check("partitionsFor and listTopics", () -> {
            String topic = makeTopic(3);
            try (Consumer<String, String> consumer = consumer(Map.of())) {
                same(3, consumer.partitionsFor(topic).size());
                ensure(consumer.listTopics().containsKey(topic), "listed");
            }
        });
    }

    // Groups

    private static void groupChecks() {
        check("a group commits and resumes, with notes", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            produce(topic, 0, range(0, 100), Map.of());
            Map<String, String> config = Map.of("group.id", "g-" + topic, "max.poll.records", "10",
                    "enable.auto.commit", "false");
            try (Consumer<String, String> consumer = consumer(config)) {
                consumer.subscribe(List.of(topic));
                same(range(0, 40), values(poll(consumer, 40)));
                consumer.commitSync(Map.of(partition, new OffsetAndMetadata(40, "forty")));
                same("forty", consumer.committed(Set.of(partition)).get(partition).metadata());
            }
            try (Consumer<String, String> consumer = consumer(config)) {
                consumer.subscribe(List.of(topic));
                same(range(40, 100), values(poll(consumer, 60)));
            }
        });
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")) {
            check("two members share partitions by " + assignor, () -> {
                String topic = makeTopic(6);
                Map<String, String> config = Map.of("group.id", "g-" + topic,
                        "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
                try (Member one = new Member(topic, config)) {
                    until("one has all six", () -> one.owned().size() == 6);
                    try (Member two = new Member(topic, config)) {
                        until("three each", () -> one.owned().size() == 3 && two.owned().size() == 3);
                        for (int p = 0; p < 6; p++) {
                            produce(topic, p, range(p * 100, p * 100 + 100), Map.of());
                        }
                        until("600 records", () -> one.got.size() + two.got.size() >= 600);
                        List<String> all = new ArrayList<>(one.got());
                        all.addAll(two.got());
                        same(new TreeSet<>(range(0, 600)), new TreeSet<>(all));
                        same(600, all.size());
                        if (assignor.startsWith("Cooperative")) {
                            ensure(one.revoked.size() == 3, "only the three that moved were revoked: " + one.revoked);
                        }
                    }
                    until("one has all six again", () -> one.owned().size() == 6);
                }
            });
        }
        check("a static member that restarts keeps its partitions without a rebalance", () -> {
            String topic = makeTopic(4);
            Map<String, String> common = Map.of("group.id", "g-" + topic, "session.timeout.ms", "20000");
            try (Member one = new Member(topic, with(common, "group.instance.id", "one"))) {
                Member two = new Member(topic, with(common, "group.instance.id", "two"));
                until("two each", () -> one.owned().size() == 2 && two.owned().size() == 2);
                Set<Integer> owned = two.owned();
                int assigned = one.assignments;
                two.close();
                Thread.sleep(1000);
                try (Member again = new Member(topic, with(common, "group.instance.id", "two"))) {
                    until("owns two again", () -> again.owned().size() == 2);
                    same(owned, again.owned());
                    Thread.sleep(1500);
                    same(assigned, one.assignments);
                }
            }
        });
        check("a second member with the same instance id fences the first", () -> {
            String topic = makeTopic(1);
            Map<String, String> config = Map.of("group.id", "g-" + topic, "group.instance.id", "same");
            Member first = new Member(topic, config);
            until("joined", () -> first.owned().size() == 1);
            try (Member second = new Member(topic, config)) {
                until("fenced", () -> first.failure instanceof FencedInstanceIdException);
                until("second has it", () -> second.owned().size() == 1);
            }
            first.close();
        });
        check("a member that stops polling is dropped and its commit refused", () -> {
            String topic = makeTopic(1);
            produce(topic, 0, range(0, 10), Map.of());
            Map<String, String> config = Map.of("group.id", "g-" + topic, "max.poll.interval.ms", "1500",
                    "session.timeout.ms", "6000", "enable.auto.commit", "false");
            try (Consumer<String, String> slow = consumer(config)) {
                slow.subscribe(List.of(topic));
                poll(slow, 10);
                Thread.sleep(3000);
                try (Member heir = new Member(topic, config)) {
                    until("the heir owns it", () -> heir.owned().size() == 1);
                    try {
                        slow.commitSync();
                        throw new AssertionError("the stranger's commit was taken");
                    } catch (CommitFailedException | RebalanceInProgressException expected) {
                        // as Kafka does
                    }
                }
            }
        });
        check("a subscription by pattern finds new topics", () -> {
            String prefix = "pattern-" + System.nanoTime();
            Map<String, String> config = Map.of("group.id", prefix, "metadata.max.age.ms", "500");
            try (Member member = new Member(java.util.regex.Pattern.compile(prefix + ".*"), config)) {
                try (Admin admin = admin()) {
                    admin.createTopics(List.of(new NewTopic(prefix + "-a", 2, (short) 1))).all().get();
                }
                until("both partitions", () -> member.owned().size() == 2);
            }
        });
        check("ten members settle and leave", () -> {
            String topic = makeTopic(10);
            Map<String, String> config = Map.of("group.id", "g-" + topic);
            List<Member> members = new ArrayList<>();
            for (int i = 0; i < 10; i++) {
                members.add(new Member(topic, config));
            }
            try {
                until("one each", () -> members.stream().allMatch(m -> m.owned().size() == 1));
            } finally {
                for (Member member : members) {
                    member.close();
                }
            }
        });
        skip("the consumer group protocol of KIP-848", "Tidelog does not offer ConsumerGroupHeartbeat (68)");
        skip("share groups", "Tidelog does not offer ShareGroupHeartbeat (76)");
    }

    // Admin

    private static void adminChecks() {
        check("admin creates, lists, describes and deletes topics", () -> {
            try (Admin admin = admin()) {
                CreateTopicsResult made = admin.createTopics(List.of(new NewTopic("by-admin", 3, (short) 1)
                        .configs(Map.of("retention.ms", "123456"))));
                made.all().get();
                same(3, made.numPartitions("by-admin").get());
                same("123456", made.config("by-admin").get().get("retention.ms").value());
                refused(TopicExistsException.class,
                        admin.createTopics(List.of(new NewTopic("by-admin", 3, (short) 1))).all());
                ensure(admin.listTopics().names().get().contains("by-admin"), "listed");
                TopicDescription described = admin.describeTopics(List.of("by-admin")).allTopicNames().get().get("by-admin");
                same(3, described.partitions().size());
                same(made.topicId("by-admin").get(), described.topicId());
                same(1, described.partitions().get(0).isr().size());
                admin.deleteTopics(List.of("by-admin")).all().get();
                refused(UnknownTopicOrPartitionException.class,
                        admin.describeTopics(List.of("by-admin")).allTopicNames());
            }
        });
        check("admin is told why a topic cannot be made", () -> {
            try (Admin admin = admin()) {
                refused(InvalidReplicationFactorException.class,
                        admin.createTopics(List.of(new NewTopic("bad", 1, (short) 3))).all());
                refused(InvalidPartitionsException.class,
                        admin.createTopics(List.of(new NewTopic("bad", 0, (short) 1))).all());
                refused(InvalidTopicException.class,
                        admin.createTopics(List.of(new NewTopic("no spaces", 1, (short) 1))).all());
                refused(InvalidConfigurationException.class, admin.createTopics(List.of(
                        new NewTopic("bad", 1, (short) 1).configs(Map.of("no.such.config", "1")))).all());
            }
        });
        check("admin adds partitions", () -> {
            String topic = makeTopic(1);
            try (Admin admin = admin()) {
                admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
                same(4, admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
                refused(InvalidPartitionsException.class,
                        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(2))).all());
            }
        });
        check("admin describes the cluster", () -> {
            try (Admin admin = admin()) {
                DescribeClusterResult cluster = admin.describeCluster();
                same(1, cluster.nodes().get().size());
                same(bootstrap, cluster.controller().get().host() + ":" + cluster.controller().get().port());
                ensure(!cluster.clusterId().get().isEmpty(), "has an id");
            }
        });
        check("admin describes and alters a topic's configs", () -> {
            String topic = makeTopic(1);
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            try (Admin admin = admin()) {
                ConfigEntry before = topicConfig(admin, resource, "max.message.bytes");
                same(ConfigEntry.ConfigSource.DEFAULT_CONFIG, before.source());
                admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                        new ConfigEntry("max.message.bytes", "2000"), AlterConfigOp.OpType.SET)))).all().get();
                ConfigEntry after = topicConfig(admin, resource, "max.message.bytes");
                same("2000", after.value());
                same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, after.source());
                try (Producer<String, String> producer = producer(Map.of())) {
                    refused(RecordTooLargeException.class, producer.send(new ProducerRecord<>(topic, "x".repeat(3000))));
                }
                admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                        new ConfigEntry("max.message.bytes", ""), AlterConfigOp.OpType.DELETE)))).all().get();
                same(before.value(), topicConfig(admin, resource, "max.message.bytes").value());
                refused(InvalidConfigurationException.class, admin.incrementalAlterConfigs(Map.of(resource,
                        List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "soon"), AlterConfigOp.OpType.SET)))).all());
            }
        });
        check("admin describes and alters a broker's configs", () -> {
            try (Admin admin = admin()) {
                String id = admin.describeCluster().controller().get().idString();
                ConfigResource resource = new ConfigResource(ConfigResource.Type.BROKER, id);
                Config config = admin.describeConfigs(List.of(resource)).all().get().get(resource);
                ensure(config.entries().size() > 20, "has many entries");
                admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                        new ConfigEntry("log.retention.ms", "777777"), AlterConfigOp.OpType.SET)))).all().get();
                ConfigEntry after = topicConfig(admin, resource, "log.retention.ms");
                same("777777", after.value());
                same(ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG, after.source());
                String topic = makeTopic(1);
                same("777777", topicConfig(admin, new ConfigResource(ConfigResource.Type.TOPIC, topic), "retention.ms").value());
                admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                        new ConfigEntry("log.retention.ms", ""), AlterConfigOp.OpType.DELETE)))).all().get();
            }
        });
        check("admin deletes records", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            produce(topic, 0, range(0, 10), Map.of());
            try (Admin admin = admin(); Consumer<String, String> consumer = consumer(Map.of())) {
                same(4L, admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4)))
                        .lowWatermarks().get(partition).get().lowWatermark());
                consumer.assign(List.of(partition));
                same(range(4, 10), values(poll(consumer, 6)));
                refused(org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
                        admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all());
            }
        });
        check("admin lists offsets of every kind", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            try (Producer<String, String> producer = producer(Map.of()); Admin admin = admin()) {
                for (long time : List.of(1000L, 9000L, 3000L)) {
                    producer.send(new ProducerRecord<>(topic, 0, time, null, "v")).get();
                }
                same(0L, listed(admin, partition, OffsetSpec.earliest()).offset());
                same(3L, listed(admin, partition, OffsetSpec.latest()).offset());
                same(1L, listed(admin, partition, OffsetSpec.maxTimestamp()).offset());
                same(1L, listed(admin, partition, OffsetSpec.forTimestamp(2000)).offset());
                same(-1L, listed(admin, partition, OffsetSpec.forTimestamp(9001)).offset());
                same(0L, listed(admin, partition, OffsetSpec.earliestLocal()).offset());
            }
        });
        check("admin lists, describes and deletes groups", () -> {
            String topic = makeTopic(2);
            String group = "g-" + topic;
            produce(topic, 0, range(0, 5), Map.of());
            try (Admin admin = admin()) {
                try (Member member = new Member(topic, Map.of("group.id", group, "client.id", "me"))) {
                    until("joined", () -> member.owned().size() == 2);
                    until("read", () -> member.got().size() == 5);
                    GroupListing listing = admin.listGroups().all().get().stream()
                            .filter(g -> g.groupId().equals(group)).findFirst().orElseThrow();
                    same("consumer", listing.protocol());
                    same(GroupState.STABLE, listing.groupState().orElseThrow());
                    ConsumerGroupDescription described =
                            admin.describeConsumerGroups(List.of(group)).all().get().get(group);
                    same(GroupState.STABLE, described.groupState());
                    same("range", described.partitionAssignor());
                    MemberDescription only = described.members().iterator().next();
                    same("me", only.clientId());
                    same(2, only.assignment().topicPartitions().size());
                    refused(GroupNotEmptyException.class, admin.deleteConsumerGroups(List.of(group)).all());
                    refused(GroupSubscribedToTopicException.class, admin.deleteConsumerGroupOffsets(
                            group, Set.of(new TopicPartition(topic, 0))).all());
                }
                same(5L, admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
                        .get(new TopicPartition(topic, 0)).offset());
                admin.deleteConsumerGroups(List.of(group)).all().get();
                refused(GroupIdNotFoundException.class, admin.describeClassicGroups(List.of(group)).all());
            }
        });
        check("admin alters and deletes a group's offsets", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            produce(topic, 0, range(0, 10), Map.of());
            try (Admin admin = admin()) {
                String group = "g-" + topic;
                admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(7))).all().get();
                same(7L, admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition).offset());
                admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
                same(null, admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition));
            }
        });
        check("admin removes members from a group", () -> {
            String topic = makeTopic(1);
            String group = "g-" + topic;
            try (Admin admin = admin();
                    Member member = new Member(topic, Map.of("group.id", group, "group.instance.id", "fixed"))) {
                until("joined", () -> member.owned().size() == 1);
                admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(
                        Set.of(new MemberToRemove("fixed")))).all().get();
            }
        });
        check("admin describes log directories", () -> {
            try (Admin admin = admin()) {
                int id = admin.describeCluster().controller().get().id();
                Map<String, LogDirDescription> found = admin.describeLogDirs(List.of(id)).allDescriptions().get().get(id);
                ensure(found.values().stream().allMatch(d -> d.error() == null), "no error");
                ensure(found.values().stream().anyMatch(d -> !d.replicaInfos().isEmpty()), "lists replicas");
            }
        });
        check("admin describes producers", () -> {
            String topic = makeTopic(1);
            produce(topic, 0, range(0, 3), Map.of("enable.idempotence", "true"));
            TopicPartition partition = new TopicPartition(topic, 0);
            try (Admin admin = admin()) {
                List<ProducerState> found = admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
                same(1, found.size());
                same(2, found.get(0).lastSequence());
            }
        });
        check("admin elects leaders and lists reassignments", () -> {
            String topic = makeTopic(1);
            TopicPartition partition = new TopicPartition(topic, 0);
            try (Admin admin = admin()) {
                refused(ElectionNotNeededException.class, admin.electLeaders(
                        org.apache.kafka.common.ElectionType.PREFERRED, Set.of(partition)).partitions()
                        .thenApply(results -> {
                            throw (RuntimeException) results.get(partition).orElseThrow();
                        }));
                same(Map.of(), admin.listPartitionReassignments().reassignments().get());
            }
        });
        check("admin describes the metadata quorum", () -> {
            try (Admin admin = admin()) {
                QuorumInfo quorum = admin.describeMetadataQuorum().quorumInfo().get();
                same(1, quorum.voters().size());
                same(quorum.leaderId(), quorum.voters().get(0).replicaId());
            }
        });
        check("admin describes features", () -> {
            try (Admin admin = admin()) {
                ensure(admin.describeFeatures().featureMetadata().get() != null, "answered");
            }
        });
        skip("admin creates and deletes ACLs", "Tidelog has no ACLs yet");
        skip("admin sets quotas and SCRAM credentials", "Tidelog has neither yet");
    }

    // A member of a group, in a thread of its own.

    private static final class Member implements AutoCloseable, ConsumerRebalanceListener {
        final List<String> got = java.util.Collections.synchronizedList(new ArrayList<>());
        final Set<Integer> revoked = java.util.Collections.synchronizedSet(new HashSet<>());
        volatile int assignments = 0;
        volatile Exception failure;
        private final Set<TopicPartition> owned = java.util.Collections.synchronizedSet(new HashSet<>());
        private volatile boolean stop = false;
        private final Thread thread;

        Member(String topic, Map<String, String> config) {
            this(java.util.regex.Pattern.compile(java.util.regex.Pattern.quote(topic)), config);
        }

        Member(java.util.regex.Pattern pattern, Map<String, String> config) {
            thread = new Thread(() -> {
                try (Consumer<String, String> consumer = consumer(config)) {
                    consumer.subscribe(pattern, this);
                    while (!stop) {
                        consumer.poll(POLL).forEach(record -> got.add(record.value()));
                    }
                } catch (Exception error) {
                    failure = error;
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        Set<Integer> owned() {
            synchronized (owned) {
                return owned.stream().map(TopicPartition::partition).collect(Collectors.toSet());
            }
        }

        List<String> got() {
            synchronized (got) {
                return new ArrayList<>(got);
            }
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assignments += 1;
            owned.addAll(partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (!stop) {
                partitions.forEach(p -> revoked.add(p.partition()));
            }
            owned.removeAll(partitions);
        }

        @Override
        public void close() throws InterruptedException {
            stop = true;
            thread.join(30_000);
        }
    }

    // Helpers

    private static Map<String, String> with(Map<String, String> config, String key, String value) {
        Map<String, String> more = new HashMap<>(config);
        more.put(key, value);
        return more;
    }

    private static Admin admin() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("default.api.timeout.ms", "15000");
        properties.put("request.timeout.ms", "10000");
        return Admin.create(properties);
    }

    private static Producer<String, String> producer(Map<String, String> config) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("delivery.timeout.ms", "30000");
        properties.put("request.timeout.ms", "10000");
        properties.putAll(config);
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    private static Consumer<String, String> consumer(Map<String, String> config) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.protocol", "classic");
        properties.put("auto.offset.reset", "earliest");
        properties.put("heartbeat.interval.ms", "500");
        properties.put("session.timeout.ms", "10000");
        properties.put("default.api.timeout.ms", "15000");
        properties.putAll(config);
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    private static String makeTopic(int partitions) throws Exception {
        return makeTopic(partitions, Map.of());
    }

    private static String makeTopic(int partitions, Map<String, String> configs) throws Exception {
        String topic = "topic-" + topics++;
        try (Admin admin = admin()) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        }
        return topic;
    }

    private static void produce(String topic, int partition, List<String> values, Map<String, String> config)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (Producer<String, String> producer = producer(config)) {
            for (String value : values) {
                sent.add(producer.send(new ProducerRecord<>(topic, partition, null, value)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                future.get();
            }
        }
    }

    private static List<ConsumerRecord<String, String>> readAll(String topic, int count) {
        try (Consumer<String, String> consumer = consumer(Map.of())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            List<ConsumerRecord<String, String>> got = poll(consumer, count);
            same((long) count, consumer.endOffsets(List.of(partition)).get(partition));
            return got;
        }
    }

    // Poll until there are `count` records, or for 20 seconds.
    private static List<ConsumerRecord<String, String>> poll(Consumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> got = new ArrayList<>();
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (got.size() < count && System.nanoTime() < deadline) {
            consumer.poll(POLL).forEach(got::add);
        }
        ensure(got.size() >= count, got.size() + " records of " + count);
        return got;
    }

    private static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    private static List<String> range(int from, int to) {
        return IntStream.range(from, to).mapToObj(Integer::toString).toList();
    }

    private static ConfigEntry topicConfig(Admin admin, ConfigResource resource, String name) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name);
    }

    private static ListOffsetsResult.ListOffsetsResultInfo listed(Admin admin, TopicPartition partition, OffsetSpec spec)
            throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
    }

    private static void until(String what, BooleanSupplier condition) throws InterruptedException {
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (!condition.getAsBoolean()) {
            ensure(System.nanoTime() < deadline, "not within 30 s: " + what);
            Thread.sleep(20);
        }
    }

    private static void refused(Class<? extends Exception> kind, Future<?> future) throws Exception {
        try {
            future.get(20, TimeUnit.SECONDS);
        } catch (ExecutionException error) {
            ensure(kind.isInstance(error.getCause()), "refused with " + error.getCause() + ", not " + kind.getSimpleName());
            return;
        }
        throw new AssertionError("not refused; expected " + kind.getSimpleName());
    }

    private static void same(Object expected, Object got) {
        if (!java.util.Objects.equals(expected, got)) {
            String left = String.valueOf(expected);
            String right = String.valueOf(got);
            throw new AssertionError("expected " + left.substring(0, Math.min(300, left.length()))
                    + ", got " + right.substring(0, Math.min(300, right.length())));
        }
    }

    private static void ensure(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    private static void check(String name, Body body) {
        long started = System.nanoTime();
        ExecutorService worker = Executors.newSingleThreadExecutor(runnable -> {
            Thread thread = new Thread(runnable);
            thread.setDaemon(true);
            return thread;
        });
        String outcome = "passed";
        String detail = "";
        try {
            worker.submit(() -> {
                body.run();
                return null;
            }).get(CHECK_SECONDS_MAX, TimeUnit.SECONDS);
        } catch (Exception error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            outcome = "failed";
            StringBuilder text = new StringBuilder(cause.toString());
            for (StackTraceElement frame : cause.getStackTrace()) {
                if (frame.getClassName().startsWith("Suite")) {
                    text.append("\n  at ").append(frame);
                }
            }
            detail = text.toString();
        }
        worker.shutdownNow();
        print(name, outcome, detail, (System.nanoTime() - started) / 1e9);
    }

    private static void skip(String name, String why) {
        print(name, "skipped", why, 0);
    }

    private static void print(String name, String outcome, String detail, double seconds) {
        System.out.printf(java.util.Locale.ROOT,
                "{\"name\": %s, \"outcome\": \"%s\", \"detail\": %s, \"seconds\": %.2f}%n",
                quoted(name), outcome, quoted(detail), seconds);
        System.out.flush();
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
