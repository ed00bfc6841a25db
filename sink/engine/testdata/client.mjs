// Uses the engine through @clickhouse/client as any program would. Prints one JSON object on stdout; throws on a surprise.
import { createRequire } from 'node:module'
import { readFileSync } from 'node:fs'

const [, , url, folder, modules] = process.argv
const { createClient } = createRequire(modules + '/')('@clickhouse/client')
const password = (role) => readFileSync(`${folder}/${role}.password`, 'utf8').trim()
const open = (role, more) => createClient({ url, username: role, password: password(role), ...more })

const found = {}
const writer = open('lowtide')
found.ping = (await writer.ping()).success
await writer.command({ query: 'CREATE TABLE js (id UInt64, name String, at DateTime64(3)) ENGINE = MergeTree ORDER BY id' })
const inserted = await writer.insert({
  table: 'js',
  values: [{ id: 1, name: 'ebb\n\nflow; \'x\'', at: '2026-11-30 01:02:03.456' }, { id: 2, name: 'ü', at: '2026-11-30 01:02:04' }],
  format: 'JSONEachRow',
})
found.written = inserted.summary?.written_rows
found.queryId = inserted.query_id.length > 0

const zipped = open('lowtide', { compression: { request: true, response: true } })
await zipped.insert({ table: 'js', columns: ['id', 'name'], values: [[3, 'gzip'], [4, 'gzip']], format: 'JSONCompactEachRow' })

const reader = open('reader', { compression: { response: true }, clickhouse_settings: { date_time_output_format: 'iso' } })
const rows = await reader.query({
  query: 'SELECT id, name, at FROM js WHERE id IN {ids:Array(UInt64)} AND name != {not:String} ORDER BY id',
  query_params: { ids: [1, 2, 3], not: 'gzip' },
  format: 'JSONEachRow',
})
found.rows = await rows.json()

const long = 'x'.repeat(200_000)
const big = await reader.query({ query: 'SELECT length({s:String}) AS n', query_params: { s: long }, format: 'JSONEachRow', use_multipart_params: true })
found.long = (await big.json())[0].n

const json = await reader.query({ query: 'SELECT count() AS n FROM js' })
const whole = await json.json()
found.meta = whole.meta
found.count = whole.data[0].n

let streamed = 0
const many = await reader.query({ query: 'SELECT number FROM numbers(50000)', format: 'JSONEachRow' })
for await (const part of many.stream()) streamed += part.length
found.streamed = streamed

for (const [name, run] of Object.entries({
  readerInsert: () => reader.insert({ table: 'js', values: [{ id: 9 }], format: 'JSONEachRow' }),
  syntax: () => reader.query({ query: 'SELEC 1' }),
  file: () => writer.query({ query: "SELECT * FROM file('/etc/passwd', LineAsString)" }),
  unknownTable: () => reader.query({ query: 'SELECT * FROM nosuch' }),
  wrongPassword: () => createClient({ url, username: 'reader', password: 'wrong' }).query({ query: 'SELECT 1' }),
})) {
  try {
    await run()
    found[name] = 'no error'
  } catch (e) {
    found[name] = `${e.code} ${e.type}`
  }
}
await Promise.all([writer.close(), zipped.close(), reader.close()])
console.log(JSON.stringify(found))
