// Drives a running aloft with the official client and prints what it saw, one
// JSON object a line: {"name", "ok", ...}. The Go test judges the lines.
//
//   node driver.mjs BASE_URL   (openai is found in ./node_modules)
import OpenAI, { toFile } from 'openai';

const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const encoder = 'aloft-encoder', lm = 'aloft-lm';
const messages = [{ role: 'user', content: 'In the beginning' }];

async function step(name, work) {
  const line = { name };
  try {
    Object.assign(line, { ok: true }, await work());
  } catch (e) {
    Object.assign(line, { ok: false, error: String(e) });
  }
  console.log(JSON.stringify(line));
}

async function refused(work) {
  try {
    await work();
  } catch (e) {
    return { type: e.constructor.name, status: e.status, code: e.code, param: e.param, kind: e.type, message: e.error?.message };
  }
  throw new Error('was not refused');
}

async function batch(name, endpoint, bodies) {
  const rows = bodies.map((body, i) => JSON.stringify({ custom_id: `${name}-${i}`, method: 'POST', url: endpoint, body }));
  const file = await client.files.create({ purpose: 'batch', file: await toFile(Buffer.from(rows.join('\n')), `${name}.jsonl`) });
  let b = await client.batches.create({ input_file_id: file.id, endpoint, completion_window: '24h', metadata: { from: 'node' } });
  const limit = Date.now() + 90_000;
  while (!['completed', 'failed', 'expired', 'cancelled'].includes(b.status) && Date.now() < limit) {
    await new Promise((r) => setTimeout(r, 200));
    b = await client.batches.retrieve(b.id);
  }
  const seen = {};
  if (b.output_file_id) {
    const text = await (await client.files.content(b.output_file_id)).text();
    for (const row of text.trim().split('\n').map((l) => JSON.parse(l))) {
      const { status_code, body } = row.response;
      const good = status_code === 200 && (body.data?.[0].embedding.length > 0 || body.choices?.[0].message.role === 'assistant');
      if (good) seen[row.custom_id] = (seen[row.custom_id] ?? 0) + 1;
    }
  }
  const listed = (await client.batches.list({ limit: 100 })).data.some((x) => x.id === b.id);
  return { status: b.status, counts: b.request_counts, seen, listed, metadata: b.metadata };
}

await step('models', async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  return { ids, one: (await client.models.retrieve(encoder)).id };
});
await step('chat', async () => {
  const r = await client.chat.completions.create({ model: lm, messages, max_tokens: 8, seed: 1 });
  return { object: r.object, text: r.choices[0].message.content, finish: r.choices[0].finish_reason, usage: r.usage };
});
await step('stream', async () => {
  const s = await client.chat.completions.create({
    model: lm, messages, max_tokens: 8, seed: 1, stream: true, stream_options: { include_usage: true },
  });
  let text = '', finish = null, usage = null, chunks = 0;
  for await (const c of s) {
    chunks++;
    text += c.choices[0]?.delta.content ?? '';
    finish = c.choices[0]?.finish_reason ?? finish;
    usage = c.usage ?? usage;
  }
  return { text, finish, usage, chunks };
});
await step('completions', async () => {
  const r = await client.completions.create({ model: lm, prompt: 'And the earth was', max_tokens: 8, seed: 1 });
  return { object: r.object, text: r.choices[0].text, finish: r.choices[0].finish_reason, usage: r.usage };
});
await step('embeddings', async () => {
  const input = ['a dog', 'a small dog', 'a treaty'];
  const plain = await client.embeddings.create({ model: encoder, input, encoding_format: 'float' });
  const packed = await client.embeddings.create({ model: encoder, input }); // the client asks for base64
  let apart = 0;
  plain.data.forEach((d, i) => d.embedding.forEach((x, j) => { apart = Math.max(apart, Math.abs(x - packed.data[i].embedding[j])); }));
  return { rows: plain.data.length, index: plain.data.map((d) => d.index), width: plain.data[0].embedding.length, apart, usage: plain.usage };
});
await step('files', async () => {
  const text = '{"a":1}\n';
  const f = await client.files.create({ purpose: 'user_data', file: await toFile(Buffer.from(text), 'note.jsonl') });
  const listed = (await client.files.list()).data.some((x) => x.id === f.id);
  const same = (await (await client.files.content(f.id)).text()) === text;
  const deleted = (await client.files.delete(f.id)).deleted;
  const after = await refused(() => client.files.retrieve(f.id));
  return { bytes: f.bytes, listed, same, deleted, after };
});
await step('batch', () => batch('embed', '/v1/embeddings', Array.from({ length: 60 }, (_, i) => ({ model: encoder, input: `sentence number ${i}` }))));
await step('chat batch', () => batch('chat', '/v1/chat/completions', Array.from({ length: 3 }, () => ({ model: lm, messages, max_tokens: 4 }))));
await step('unknown model', () => refused(() => client.chat.completions.create({ model: 'nobody', messages })));
await step('bad input', () => refused(() => client.embeddings.create({ model: encoder, input: [] })));
await step('bad value', () => refused(() => client.chat.completions.create({ model: lm, messages, temperature: -1 })));
