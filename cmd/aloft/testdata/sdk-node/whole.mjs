// Drives the whole API of a running aloft, in front of engine.mjs, with the
// official clients of OpenAI and Anthropic, and prints what it saw, one JSON
// object a line. The Go test judges the lines.
//
//   node whole.mjs BASE_URL
import OpenAI, { toFile } from 'openai';
import Anthropic from '@anthropic-ai/sdk';

const base = process.argv[2];
const client = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 0, timeout: 30_000 });
const patient = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 2, timeout: 30_000 });
const claude = new Anthropic({ baseURL: base, apiKey: 'none', maxRetries: 0, timeout: 30_000 });
const model = 'stub';
const ask = (content) => [{ role: 'user', content }];

async function step(name, work) {
  const line = { name };
  try {
    line.got = await work();
  } catch (e) {
    line.error = `${e.constructor.name} ${e.status ?? ''} ${e.message}`;
  }
  console.log(JSON.stringify(line));
}

await step('tools', async () => {
  const calls = [];
  let finish;
  const s = await client.chat.completions.create({ model, messages: ask('tools'), stream: true, tools: [{ type: 'function', function: { name: 'weather', parameters: {} } }] });
  for await (const c of s) {
    finish = c.choices[0]?.finish_reason ?? finish;
    for (const t of c.choices[0]?.delta.tool_calls ?? []) {
      const call = (calls[t.index] ??= { id: t.id, name: t.function.name, args: '' });
      call.args += t.function.arguments;
    }
  }
  return { finish, calls };
});
await step('tools by the helper', async () => { // the client's own accumulator
  const done = await client.chat.completions.stream({ model, messages: ask('tools') }).finalChatCompletion();
  return done.choices[0].message.tool_calls.map((t) => t.function.arguments);
});
await step('structured output', async () => {
  const r = await client.chat.completions.parse({ model, messages: ask('json'), response_format: { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema: { type: 'object' } } } });
  return r.choices[0].message.parsed;
});
await step('choices', async () => {
  const text = ['', '', ''];
  for await (const c of await client.chat.completions.create({ model, messages: ask('choices'), n: 3, stream: true })) for (const x of c.choices) text[x.index] += x.delta.content ?? '';
  return text;
});
await step('responses', async () => {
  const r = await client.responses.create({ model, input: 'hi' });
  return { text: r.output_text, tokens: r.usage.total_tokens };
});
await step('responses stream', async () => {
  const types = [];
  let text = '';
  for await (const e of await client.responses.create({ model, input: 'hi', stream: true })) {
    types.push(e.type);
    if (e.type === 'response.output_text.delta') text += e.delta;
  }
  return { text, first: types[0], last: types.at(-1), events: types.length };
});
await step('messages', async () => {
  const r = await claude.messages.create({ model, max_tokens: 10, messages: ask('hi') });
  return { text: r.content[0].text, tokens: r.usage.output_tokens };
});
await step('messages stream', async () => {
  const s = claude.messages.stream({ model, max_tokens: 10, messages: ask('hi') });
  const m = await s.finalMessage();
  return { text: m.content[0].text, stop: m.stop_reason, tokens: m.usage.output_tokens };
});
await step('messages error', async () => {
  try {
    await claude.messages.create({ model: 'nobody', max_tokens: 10, messages: ask('hi') });
  } catch (e) {
    return { status: e.status, kind: e.error?.error?.type, name: e.constructor.name };
  }
});
await step('moderations', async () => (await client.moderations.create({ model, input: 'x' })).results[0].flagged);
await step('moderations without a model', async () => (await client.moderations.create({ input: 'x' })).model);
await step('images', async () => Buffer.from((await client.images.generate({ model, prompt: 'a sky' })).data[0].b64_json, 'base64').toString());
await step('speech', async () => [...new Uint8Array(await (await client.audio.speech.create({ model, voice: 'alloy', input: 'hi' })).arrayBuffer())]);
await step('transcription', async () => (await client.audio.transcriptions.create({ model: 'alias-of-stub', file: await toFile(Buffer.alloc(1000, 7), 'a.wav') })).text.replace(/^\d+/, 'N'));
for (const path of ['/v1/rerank', '/v2/rerank', '/rerank']) {
  await step(path, async () => (await client.post(base + path, { body: { model, query: 'q', documents: ['a', 'b'] } })).results.length);
}
await step('tokenize', async () => (await client.post(base + '/tokenize', { body: { model, prompt: 'hé' } })).tokens);
await step('detokenize', async () => (await client.post(base + '/detokenize', { body: { model, tokens: [104, 233] } })).prompt);
await step('classify', async () => (await client.post(base + '/v1/classify', { body: { model, input: 'x' } })).data[0].label);
await step('score', async () => (await client.post(base + '/v1/score', { body: { model, text_1: 'x', text_2: 'y' } })).data[0].score);
await step('a refusal is not tried again', async () => {
  try {
    await patient.chat.completions.create({ model, messages: ask('refuse') });
  } catch (e) {
    return { status: e.status, message: e.error?.message };
  }
});
await step('each call once', async () => (await patient.chat.completions.create({ model, messages: ask('tries') })).choices[0].message.content);
await step('model', async () => (await client.models.retrieve(model)).id);
