// Drives fine-tuning on a running aloft with the official client and prints what
// it saw, one JSON object a line: {"name", "ok", ...}. The Go test judges them.
//
//   node finetune.mjs BASE_URL   (openai is found in ./node_modules)
import OpenAI, { toFile } from 'openai';

const client = new OpenAI({ baseURL: process.argv[2] + '/v1', apiKey: 'none', maxRetries: 0, timeout: 60_000 });
const model = 'aloft-lm';

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

function examples(n) {
  const one = (i) => JSON.stringify({ messages: [
    { role: 'user', content: `What was made on day ${i}?` },
    { role: 'assistant', content: 'And God saw every thing that he had made, and, behold, it was very good.' },
  ] });
  return Array.from({ length: n }, (_, i) => one(i)).join('\n');
}

const upload = async (text) => (await client.files.create({ purpose: 'fine-tune', file: await toFile(Buffer.from(text), 'examples.jsonl') })).id;

async function until(id, ...statuses) {
  const limit = Date.now() + 90_000;
  for (;;) {
    const job = await client.fineTuning.jobs.retrieve(id);
    if (statuses.includes(job.status)) return job;
    if (Date.now() > limit) throw new Error(`${id} is ${job.status} after 90s`);
    await new Promise((r) => setTimeout(r, 100));
  }
}

async function all(pages) {
  const out = [];
  for await (const item of pages) out.push(item);
  return out;
}

await step('whole', async () => {
  const training_file = await upload(examples(12));
  const made = await client.fineTuning.jobs.create({
    model, training_file, suffix: 'node', seed: 7, metadata: { from: 'node' },
    method: { type: 'supervised', supervised: { hyperparameters: { n_epochs: 2, batch_size: 'auto' } } },
  });
  const job = await until(made.id, 'succeeded', 'failed', 'cancelled');
  const files = [];
  for (const id of job.result_files) {
    const file = await client.files.retrieve(id);
    const bytes = (await (await client.files.content(id)).arrayBuffer()).byteLength;
    files.push({ name: file.filename, purpose: file.purpose, bytes, same: bytes === file.bytes });
  }
  const events = await all(client.fineTuning.jobs.listEvents(job.id, { limit: 3 }));
  const checkpoints = await all(client.fineTuning.jobs.checkpoints.list(job.id, { limit: 1 }));
  const listed = (await all(client.fineTuning.jobs.list({ limit: 1 }))).some((x) => x.id === job.id);
  return {
    made: made.object, first: made.status, job, files, listed, checkpoints,
    metrics: events.filter((e) => e.type === 'metrics').length, messages: events.filter((e) => e.type === 'message').length,
    apart: new Set(events.map((e) => e.id)).size === events.length,
  };
});
await step('held', async () => {
  const made = await client.fineTuning.jobs.create({
    model, training_file: await upload(examples(3000)), hyperparameters: { n_epochs: 50 },
  });
  const running = (await until(made.id, 'running')).status;
  const paused = (await client.fineTuning.jobs.pause(made.id)).status;
  const resumed = (await client.fineTuning.jobs.resume(made.id)).status;
  const cancelled = (await client.fineTuning.jobs.cancel(made.id)).status;
  const end = await until(made.id, 'cancelled');
  const again = await refused(() => client.fineTuning.jobs.pause(made.id));
  return { running, paused, resumed, cancelled, end: end.status, tuned: end.fine_tuned_model, again };
});
await step('bad file', async () => {
  const made = await client.fineTuning.jobs.create({ model, training_file: await upload(examples(10) + '\n{"messages":[]}') });
  const job = await until(made.id, 'failed');
  return { fault: job.error };
});
await step('unknown model', () => refused(() => client.fineTuning.jobs.create({ model: 'gpt-4o-mini', training_file: 'file-none' })));
await step('unknown file', () => refused(() => client.fineTuning.jobs.create({ model, training_file: 'file-none' })));
await step('bad hyperparameter', async () => {
  const training_file = await upload(examples(10));
  return refused(() => client.fineTuning.jobs.create({ model, training_file, hyperparameters: { n_epochs: 1000 } }));
});
await step('unknown job', () => refused(() => client.fineTuning.jobs.retrieve('ftjob-none')));
