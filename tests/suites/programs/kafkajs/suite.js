// What a kafkajs user does, counted. Prints one JSON line per check, then {"done": true}.
//
// Usage: node suite.js HOST:PORT

'use strict'

const assert = require('node:assert/strict')
const {
  CompressionTypes, ConfigResourceTypes, Kafka, logLevel,
} = require('kafkajs')

const kafka = new Kafka({
  clientId: 'suite',
  brokers: [process.argv[2]],
  logLevel: logLevel.ERROR,
  logCreator: () => ({ namespace, label, log }) => console.error(label, namespace, JSON.stringify(log)),
  retry: { retries: 3 },
})

const CHECK_MS_MAX = 60_000
let topics = 0
const checks = []
const check = (name, body) => checks.push({ name, body })
const skip = (name, why) => checks.push({ name, why })
const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
const numbers = (count, from = 0) => Array.from({ length: count }, (_, i) => from + i)

async function until(what, condition, msMax = 30_000) {
  const deadline = Date.now() + msMax
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`not within ${msMax} ms: ${what}`)
    await sleep(50)
  }
}

async function withAdmin(body) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await body(admin)
  } finally {
    await admin.disconnect()
  }
}

async function makeTopic(partitions = 1, configEntries = []) {
  const topic = `topic-${topics++}`
  await withAdmin(admin => admin.createTopics({
    topics: [{ topic, numPartitions: partitions, configEntries }],
    waitForLeaders: true,
  }))
  return topic
}

async function produce(topic, messages, { options = {}, send = {} } = {}) {
  const producer = kafka.producer(options)
  await producer.connect()
  try {
    return await producer.send({ topic, messages, ...send })
  } finally {
    await producer.disconnect()
  }
}

// A running member of a group, with what it received.
async function member(groupId, topic, { options = {}, run = {} } = {}) {
  const consumer = kafka.consumer({
    groupId, sessionTimeout: 10_000, heartbeatInterval: 500, rebalanceTimeout: 10_000,
    maxWaitTimeInMs: 500, ...options,
  })
  const self = { consumer, received: [], assignment: [], joins: 0 }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    self.joins += 1
    self.assignment = payload.memberAssignment[topic] || []
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message }) => { self.received.push({ partition, message }) },
    ...run,
  })
  await until('joined', () => self.joins > 0)
  return self
}

const values = received => received.map(({ message }) => message.value.toString())

// Admin

check('admin creates, lists, describes and deletes topics', async () => withAdmin(async admin => {
  const made = await admin.createTopics({ topics: [{ topic: 'admin-a', numPartitions: 3 }] })
  assert.equal(made, true)
  assert.equal(await admin.createTopics({ topics: [{ topic: 'admin-a' }] }), false)
  assert.ok((await admin.listTopics()).includes('admin-a'))
  const { topics: [described] } = await admin.fetchTopicMetadata({ topics: ['admin-a'] })
  assert.deepEqual(described.partitions.map(p => p.partitionId).sort(), [0, 1, 2])
  await admin.deleteTopics({ topics: ['admin-a'] })
  assert.ok(!(await admin.listTopics()).includes('admin-a'))
}))

check('admin validates topics without making them', async () => withAdmin(async admin => {
  await admin.createTopics({ validateOnly: true, waitForLeaders: false, topics: [{ topic: 'only-validated' }] })
  assert.ok(!(await admin.listTopics()).includes('only-validated'))
}))

check('admin is told why a topic cannot be made', async () => withAdmin(async admin => {
  await assert.rejects(
    admin.createTopics({ topics: [{ topic: 'bad', replicationFactor: 3 }] }),
    error => /replication.factor/i.test(error.message + JSON.stringify(error.errors?.map(e => e.message))),
  )
  await assert.rejects(admin.createTopics({ topics: [{ topic: 'no spaces' }] }))
}))

check('admin adds partitions', async () => {
  const topic = await makeTopic(1)
  await withAdmin(async admin => {
    await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
    const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] })
    assert.equal(described.partitions.length, 4)
  })
})

check('admin describes the cluster', async () => withAdmin(async admin => {
  const cluster = await admin.describeCluster()
  assert.equal(cluster.brokers.length, 1)
  assert.equal(`${cluster.brokers[0].host}:${cluster.brokers[0].port}`, process.argv[2])
  assert.equal(cluster.controller, cluster.brokers[0].nodeId)
  assert.ok(cluster.clusterId)
}))

check('admin describes and alters configs', async () => {
  const topic = await makeTopic(1, [{ name: 'retention.ms', value: '60000' }])
  await withAdmin(async admin => {
    const read = async () => {
      const { resources: [found] } = await admin.describeConfigs({
        includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }],
      })
      return Object.fromEntries(found.configEntries.map(e => [e.configName, e]))
    }
    const before = await read()
    assert.equal(before['retention.ms'].configValue, '60000')
    assert.equal(before['retention.ms'].isDefault, false)
    assert.equal(before['cleanup.policy'].configValue, 'delete')
    assert.ok(Object.keys(before).length > 10)
    await admin.alterConfigs({
      validateOnly: false,
      resources: [{
        type: ConfigResourceTypes.TOPIC, name: topic,
        configEntries: [{ name: 'max.message.bytes', value: '5000' }],
      }],
    })
    const after = await read()
    assert.equal(after['max.message.bytes'].configValue, '5000')
    assert.notEqual(after['retention.ms'].configValue, '60000') // AlterConfigs replaces all
  })
  await assert.rejects(produce(topic, [{ value: 'x'.repeat(6000) }]), /larger|too large/i)
})

check('admin describes a broker\'s configs', async () => withAdmin(async admin => {
  const { brokers: [broker] } = await admin.describeCluster()
  const { resources: [found] } = await admin.describeConfigs({
    includeSynonyms: true, resources: [{ type: ConfigResourceTypes.BROKER, name: `${broker.nodeId}` }],
  })
  assert.equal(found.errorCode, 0)
  assert.ok(found.configEntries.length > 20)
}))

check('admin lists offsets, also by timestamp', async () => {
  const topic = await makeTopic(2)
  await produce(topic, numbers(5).map(i => ({ value: `${i}`, partition: 0, timestamp: `${1_000_000 + i}` })))
  await withAdmin(async admin => {
    const offsets = await admin.fetchTopicOffsets(topic)
    assert.deepEqual(
      offsets.sort((a, b) => a.partition - b.partition).map(o => [o.partition, o.low, o.high]),
      [[0, '0', '5'], [1, '0', '0']],
    )
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, 1_000_003)
    assert.equal(found.find(o => o.partition === 0).offset, '3')
  })
})

check('admin deletes records', async () => {
  const topic = await makeTopic(1)
  await produce(topic, numbers(10).map(i => ({ value: `${i}` })))
  await withAdmin(async admin => {
    await admin.fetchTopicOffsets(topic) // deleteTopicRecords does not load metadata by itself
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
    assert.deepEqual((await admin.fetchTopicOffsets(topic)).map(o => [o.low, o.high]), [['4', '10']])
  })
})

check('admin lists, describes and deletes groups', async () => {
  const topic = await makeTopic(2)
  const one = await member('admin-group', topic)
  await withAdmin(async admin => {
    assert.ok((await admin.listGroups()).groups.some(g => g.groupId === 'admin-group' && g.protocolType === 'consumer'))
    const { groups: [described] } = await admin.describeGroups(['admin-group'])
    assert.equal(described.state, 'Stable')
    assert.equal(described.members.length, 1)
    assert.equal(described.members[0].clientId, 'suite')
    await assert.rejects(admin.deleteGroups(['admin-group']))
    await one.consumer.disconnect()
    const { groups: [empty] } = await admin.describeGroups(['admin-group'])
    assert.equal(empty.state, 'Empty')
    await admin.deleteGroups(['admin-group'])
    assert.ok(!(await admin.listGroups()).groups.some(g => g.groupId === 'admin-group'))
  })
})

check('admin sets, fetches and resets a group\'s offsets', async () => {
  const topic = await makeTopic(2)
  await produce(topic, numbers(10).map(i => ({ value: `${i}`, partition: 0 })))
  await withAdmin(async admin => {
    await admin.setOffsets({ groupId: 'offsets-group', topic, partitions: [{ partition: 0, offset: '7' }] })
    const fetched = await admin.fetchOffsets({ groupId: 'offsets-group', topics: [topic] })
    const byPartition = Object.fromEntries(fetched[0].partitions.map(p => [p.partition, p.offset]))
    assert.deepEqual(byPartition, { 0: '7', 1: '-1' })
    await admin.resetOffsets({ groupId: 'offsets-group', topic, earliest: true })
    const reset = await admin.fetchOffsets({ groupId: 'offsets-group', topics: [topic], resolveOffsets: true })
    assert.equal(reset[0].partitions.find(p => p.partition === 0).offset, '0')
  })
})

skip('admin creates and deletes ACLs', 'Tidelog has no ACLs yet')

// Producers

check('a producer learns the offsets of what it wrote', async () => {
  const topic = await makeTopic(1)
  const [first] = await produce(topic, [{ value: 'a' }, { value: 'b' }])
  const [second] = await produce(topic, [{ value: 'c' }])
  assert.deepEqual([first.baseOffset, second.baseOffset], ['0', '2'])
})

for (const acks of [0, 1, -1]) {
  check(`acks=${acks} delivers`, async () => {
    const topic = await makeTopic(1)
    await produce(topic, numbers(100).map(i => ({ value: `${i}` })), { send: { acks } })
    const reader = await member(`acks-${acks}`, topic)
    await until('100 records', () => reader.received.length >= 100)
    await reader.consumer.disconnect()
    assert.deepEqual(values(reader.received), numbers(100).map(String))
  })
}

for (const [name, compression] of [['no codec', CompressionTypes.None], ['gzip', CompressionTypes.GZIP]]) {
  check(`keys, values, headers and times come back with ${name}`, async () => {
    const topic = await makeTopic(1)
    const sent = numbers(1000).map(i => ({
      key: i % 3 ? `key-${i}` : null, value: i % 5 ? `value-${i}`.repeat(1 + (i % 20)) : null,
      headers: { trace: `${i}`, kind: Buffer.from([0, 255, i % 256]) }, timestamp: `${1_700_000_000_000 + i}`,
    }))
    await produce(topic, sent, { send: { compression } })
    const reader = await member(`codec-${name}`, topic)
    await until('1000 records', () => reader.received.length >= 1000)
    await reader.consumer.disconnect()
    reader.received.forEach(({ message }, i) => {
      assert.equal(message.offset, `${i}`)
      assert.equal(message.key && message.key.toString(), sent[i].key)
      assert.equal(message.value && message.value.toString(), sent[i].value)
      assert.equal(message.headers.trace.toString(), `${i}`)
      assert.deepEqual(message.headers.kind, sent[i].headers.kind)
      assert.equal(message.timestamp, sent[i].timestamp)
    })
    assert.equal(reader.received.length, 1000)
  })
}

check('an idempotent producer delivers once, in order', async () => {
  const topic = await makeTopic(1)
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 5 })
  await producer.connect()
  for (const i of numbers(50)) {
    await producer.send({ topic, messages: numbers(10, i * 10).map(n => ({ value: `${n}` })) })
  }
  await producer.disconnect()
  const reader = await member('idempotent', topic)
  await until('500 records', () => reader.received.length >= 500)
  await sleep(300)
  await reader.consumer.disconnect()
  assert.deepEqual(values(reader.received), numbers(500).map(String))
})

check('a batch goes to several topics', async () => {
  const [a, b] = [await makeTopic(1), await makeTopic(1)]
  const producer = kafka.producer()
  await producer.connect()
  await producer.sendBatch({ topicMessages: [
    { topic: a, messages: [{ value: '1' }] }, { topic: b, messages: [{ value: '2' }, { value: '3' }] },
  ] })
  await producer.disconnect()
  await withAdmin(async admin => {
    assert.equal((await admin.fetchTopicOffsets(a))[0].high, '1')
    assert.equal((await admin.fetchTopicOffsets(b))[0].high, '2')
  })
})

check('a topic is made by the first produce', async () => {
  await produce('made-by-kafkajs', [{ value: 'x' }])
  await withAdmin(async admin => assert.equal((await admin.fetchTopicOffsets('made-by-kafkajs'))[0].high, '1'))
})

check('a message over the limit is refused', async () => {
  const topic = await makeTopic(1)
  await assert.rejects(produce(topic, [{ value: 'x'.repeat(2_000_000) }]), /larger|too large/i)
})

// Consumers

check('a group resumes where it stopped', async () => {
  const topic = await makeTopic(2)
  await produce(topic, numbers(200).map(i => ({ value: `${i}`, partition: i % 2 })))
  const first = await member('resume', topic)
  await until('200 records', () => first.received.length >= 200)
  await first.consumer.disconnect()
  await produce(topic, numbers(50, 200).map(i => ({ value: `${i}`, partition: i % 2 })))
  const second = await member('resume', topic)
  await until('50 records', () => second.received.length >= 50)
  await sleep(300)
  await second.consumer.disconnect()
  assert.deepEqual(values(second.received).map(Number).sort((a, b) => a - b), numbers(50, 200))
})

check('two consumers share the partitions and one inherits them', async () => {
  const topic = await makeTopic(4)
  const one = await member('rebalance', topic)
  await until('all four', () => one.assignment.length === 4)
  const two = await member('rebalance', topic)
  await until('two each', () => one.assignment.length === 2 && two.assignment.length === 2)
  await produce(topic, numbers(400).map(i => ({ value: `${i}`, partition: i % 4 })))
  await until('400 records', () => one.received.length + two.received.length >= 400)
  assert.deepEqual([one.received.length, two.received.length], [200, 200])
  await two.consumer.disconnect()
  await until('all four again', () => one.assignment.length === 4)
  await produce(topic, numbers(400, 400).map(i => ({ value: `${i}`, partition: i % 4 })))
  await until('400 more', () => one.received.length >= 600)
  await sleep(300)
  await one.consumer.disconnect()
  assert.deepEqual(
    values([...one.received, ...two.received]).map(Number).sort((a, b) => a - b), numbers(800),
  )
})

check('seek repeats and skips', async () => {
  const topic = await makeTopic(1)
  await produce(topic, numbers(20).map(i => ({ value: `${i}` })))
  const reader = await member('seek', topic)
  await until('20 records', () => reader.received.length >= 20)
  reader.received.length = 0
  reader.consumer.seek({ topic, partition: 0, offset: '15' })
  await until('5 records', () => reader.received.length >= 5)
  await sleep(200)
  await reader.consumer.disconnect()
  assert.deepEqual(values(reader.received), ['15', '16', '17', '18', '19'])
})

check('commits by hand keep offset and note', async () => {
  const topic = await makeTopic(1)
  await produce(topic, numbers(20).map(i => ({ value: `${i}` })))
  const reader = await member('manual', topic, { run: { autoCommit: false } })
  await until('joined', () => reader.assignment.length === 1)
  await reader.consumer.commitOffsets([{ topic, partition: 0, offset: '12', metadata: 'by hand' }])
  await reader.consumer.disconnect()
  await withAdmin(async admin => {
    const [{ partitions: [found] }] = await admin.fetchOffsets({ groupId: 'manual', topics: [topic] })
    assert.deepEqual([found.offset, found.metadata], ['12', 'by hand'])
  })
  const next = await member('manual', topic)
  await until('8 records', () => next.received.length >= 8)
  await next.consumer.disconnect()
  assert.deepEqual(values(next.received), numbers(8, 12).map(String))
})

check('pause stops and resume goes on', async () => {
  const topic = await makeTopic(1)
  const reader = await member('pause', topic)
  reader.consumer.pause([{ topic }])
  await produce(topic, [{ value: 'x' }])
  await sleep(1500)
  assert.equal(reader.received.length, 0)
  reader.consumer.resume([{ topic }])
  await until('1 record', () => reader.received.length === 1)
  await reader.consumer.disconnect()
})

check('eachBatch sees high watermark and lag', async () => {
  const topic = await makeTopic(1)
  await produce(topic, numbers(30).map(i => ({ value: `${i}` })))
  const batches = []
  const reader = await member('batches', topic, { run: { eachMessage: undefined, eachBatch: async ({ batch }) => {
    batches.push({ high: batch.highWatermark, count: batch.messages.length, last: batch.lastOffset() })
  } } })
  await until('30 records', () => batches.reduce((sum, b) => sum + b.count, 0) >= 30)
  await reader.consumer.disconnect()
  assert.equal(batches.at(-1).high, '30')
  assert.equal(batches.at(-1).last, '29')
})

// Transactions: kafkajs readers are isolated unless they say otherwise.

async function readCount(group, topic, count, options = {}) {
  const reader = await member(group, topic, { options })
  await until(`${count} records`, () => reader.received.length >= count)
  await sleep(300) // none too many
  await reader.consumer.disconnect()
  return values(reader.received)
}

check('a transactional producer commits and aborts', async () => {
  const topic = await makeTopic(1)
  const producer = kafka.producer({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true })
  await producer.connect()
  for (const number of numbers(4)) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: [{ value: `${number}` }] })
    await (number % 2 ? transaction.abort() : transaction.commit())
  }
  await producer.disconnect()
  assert.deepEqual(await readCount('isolated', topic, 2), ['0', '2'])
  assert.deepEqual(await readCount('open', topic, 4, { readUncommitted: true }), ['0', '1', '2', '3'])
})

check('offsets move with a transaction, or not at all', async () => {
  const topic = await makeTopic(1)
  const groupId = `group-${topic}`
  const producer = kafka.producer({ transactionalId: topic, maxInFlightRequests: 1, idempotent: true })
  await producer.connect()
  for (const [offset, commits] of [['3', true], ['7', false]]) {
    const transaction = await producer.transaction()
    await transaction.send({ topic, messages: [{ value: 'out' }] })
    await transaction.sendOffsets({
      consumerGroupId: groupId, topics: [{ topic, partitions: [{ partition: 0, offset }] }],
    })
    await (commits ? transaction.commit() : transaction.abort())
  }
  await producer.disconnect()
  await until('the offset', () => withAdmin(async admin => {
    const [found] = await admin.fetchOffsets({ groupId, topics: [topic] })
    return found.partitions[0].offset === '3'
  }))
})

check('a new producer fences the old one', async () => {
  const topic = await makeTopic(1)
  const options = { transactionalId: topic, maxInFlightRequests: 1, idempotent: true }
  const [old, next] = [kafka.producer(options), kafka.producer(options)]
  await old.connect()
  const transaction = await old.transaction()
  await transaction.send({ topic, messages: [{ value: 'old' }] })
  await next.connect()
  const following = await next.transaction()
  await following.send({ topic, messages: [{ value: 'new' }] })
  await following.commit()
  await assert.rejects(transaction.commit())
  await old.disconnect()
  await next.disconnect()
  assert.deepEqual(await readCount('fenced', topic, 1), ['new'])
})

async function main() {
  for (const { name, body, why } of checks) {
    const started = Date.now()
    const result = { name, outcome: 'passed', detail: '', seconds: 0 }
    if (why) {
      result.outcome = 'skipped'
      result.detail = why
    } else {
      let timer
      const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error(`still running after ${CHECK_MS_MAX} ms`)), CHECK_MS_MAX)
      })
      try {
        await Promise.race([body(), late])
      } catch (error) {
        result.outcome = 'failed'
        result.detail = `${error.stack}`.slice(0, 2000)
      }
      clearTimeout(timer)
      result.seconds = (Date.now() - started) / 1000
    }
    console.log(JSON.stringify(result))
  }
  console.log(JSON.stringify({ done: true }))
  process.exit(0) // a check that failed may have left a consumer running
}

main()
