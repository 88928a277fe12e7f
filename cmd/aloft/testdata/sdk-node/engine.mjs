// A scripted engine that speaks the whole API: what the clients ask of it says
// what it plays. It is started by aloft as an engine of kind `command`.
//
//   node engine.mjs PORT
import { createServer } from 'node:http';

const usage = { prompt_tokens: 5, completion_tokens: 4, total_tokens: 9 };
const chunk = (choice, more) => ({ id: 'c1', object: 'chat.completion.chunk', created: 1, model: 'stub', choices: choice ? [{ index: 0, finish_reason: null, ...choice }] : [], ...more });
const tries = {};

// Two parallel calls of tools, their arguments in pieces of one byte.
function* tools() {
  yield chunk({ delta: { role: 'assistant', content: null } });
  const calls = [{ id: 'call_a', name: 'weather', args: '{"city":"Zürich 🏔"}' }, { id: 'call_b', name: 'time', args: '{"zone":"CET"}' }];
  for (const [index, c] of calls.entries()) {
    yield chunk({ delta: { tool_calls: [{ index, id: c.id, type: 'function', function: { name: c.name, arguments: '' } }] } });
  }
  for (let i = 0; calls.some((c) => i < [...c.args].length); i++) {
    for (const [index, c] of calls.entries()) {
      const piece = [...c.args][i];
      if (piece !== undefined) yield chunk({ delta: { tool_calls: [{ index, function: { arguments: piece } }] } });
    }
  }
  yield chunk({ delta: {}, finish_reason: 'tool_calls' });
  yield chunk(null, { usage });
}

function* choices() { // n = 3, interleaved
  for (const piece of ['a', 'b']) for (const index of [2, 0, 1]) yield chunk({ index, delta: { content: piece + index } });
  for (const index of [1, 2, 0]) yield chunk({ index, delta: {}, finish_reason: 'stop' });
  yield chunk(null, { usage });
}

function* responses() {
  const base = { id: 'resp_1', object: 'response', created_at: 1, model: 'stub', output: [], status: 'in_progress' };
  const item = { id: 'msg_1', type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: 'Hello', annotations: [] }] };
  let n = 0;
  const event = (type, more) => ({ type, sequence_number: n++, ...more });
  yield event('response.created', { response: base });
  yield event('response.output_item.added', { output_index: 0, item: { ...item, status: 'in_progress', content: [] } });
  yield event('response.content_part.added', { item_id: 'msg_1', output_index: 0, content_index: 0, part: { type: 'output_text', text: '', annotations: [] } });
  for (const delta of ['Hel', 'lo']) yield event('response.output_text.delta', { item_id: 'msg_1', output_index: 0, content_index: 0, delta });
  yield event('response.output_item.done', { output_index: 0, item });
  yield event('response.completed', { response: { ...base, status: 'completed', output: [item], usage: { input_tokens: 5, output_tokens: 2, total_tokens: 7 } } });
}

function* anthropic() {
  yield { type: 'message_start', message: { id: 'm1', type: 'message', role: 'assistant', model: 'stub', content: [], stop_reason: null, stop_sequence: null, usage: { input_tokens: 5, output_tokens: 1 } } };
  yield { type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } };
  yield { type: 'ping' };
  for (const text of ['Hel', 'lo']) yield { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text } };
  yield { type: 'content_block_stop', index: 0 };
  yield { type: 'message_delta', delta: { stop_reason: 'end_turn', stop_sequence: null }, usage: { output_tokens: 2 } };
  yield { type: 'message_stop' };
}

function stream(res, events, named, done) {
  res.writeHead(200, { 'content-type': 'text/event-stream' });
  for (const e of events) res.write((named ? `event: ${e.type}\n` : '') + `data: ${JSON.stringify(e)}\n\n`);
  res.end(done ? 'data: [DONE]\n\n' : '');
}

function json(res, status, body, headers = {}) {
  res.writeHead(status, { 'content-type': 'application/json', ...headers });
  res.end(JSON.stringify(body));
}

const failed = (message, type = 'invalid_request_error') => ({ error: { message, type, param: null, code: null } });

function chat(res, r) {
  const word = r.messages.at(-1).content;
  const n = (tries[word] = (tries[word] ?? 0) + 1);
  if (word === 'tools') return r.stream ? stream(res, tools(), false, true) : json(res, 500, failed('stream it'));
  if (word === 'choices') return stream(res, choices(), false, true);
  if (word.startsWith('refuse')) return json(res, 422, failed('the engine does not like this'));
  if (word.startsWith('tries')) return json(res, 200, { id: 'c', object: 'chat.completion', created: 1, model: 'stub', usage, choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: String(n) } }] });
  const content = r.response_format?.type === 'json_schema' ? JSON.stringify({ schema: r.response_format.json_schema.name, strict: r.response_format.json_schema.strict }) : 'Hello';
  json(res, 200, { id: 'c', object: 'chat.completion', created: 1, model: 'stub', usage, choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content } }] });
}

const routes = {
  '/v1/chat/completions': chat,
  '/v1/responses': (res, r) => r.stream ? stream(res, responses(), true, false) : json(res, 200, [...responses()].at(-1).response),
  '/v1/messages': (res, r) => r.stream ? stream(res, anthropic(), true, false)
    : json(res, 200, { id: 'm1', type: 'message', role: 'assistant', model: 'stub', content: [{ type: 'text', text: 'Hello' }], stop_reason: 'end_turn', stop_sequence: null, usage: { input_tokens: 5, output_tokens: 2 } }),
  '/v1/moderations': (res, r) => json(res, 200, { id: 'modr-1', model: r.model, results: [{ flagged: false, categories: {}, category_scores: {} }] }),
  '/v1/images/generations': (res, r) => json(res, 200, { created: 1, data: [{ b64_json: Buffer.from(r.prompt).toString('base64') }] }),
  '/v1/audio/speech': (res) => { res.writeHead(200, { 'content-type': 'audio/mpeg' }); res.end(Buffer.from([0xff, 0xfb, 0, 1, 2, 254, 255])); },
  '/v1/audio/transcriptions': (res, r, raw) => json(res, 200, { text: `${raw.length} bytes, model ${/name="model"\r\n\r\n([^\r]*)/.exec(raw.toString('latin1'))?.[1]}` }),
  '/v1/rerank': (res, r) => json(res, 200, { id: 'rr', model: r.model, results: r.documents.map((d, index) => ({ index, relevance_score: 1 / (index + 1) })), usage: { total_tokens: 8 } }),
  '/tokenize': (res, r) => json(res, 200, { count: r.prompt.length, max_model_len: 64, tokens: [...r.prompt].map((c) => c.codePointAt(0)) }),
  '/detokenize': (res, r) => json(res, 200, { prompt: String.fromCodePoint(...r.tokens) }),
  '/classify': (res, r) => json(res, 200, { id: 'cl', object: 'list', model: r.model, data: [{ index: 0, label: 'calm', probs: [0.9, 0.1], num_classes: 2 }], usage: { prompt_tokens: 1, total_tokens: 1 } }),
  '/v1/score': (res, r) => json(res, 200, { id: 'sc', object: 'list', model: r.model, data: [{ index: 0, object: 'score', score: 0.5 }], usage: { prompt_tokens: 2, total_tokens: 2 } }),
};
routes['/v2/rerank'] = routes['/rerank'] = routes['/v1/rerank'];
routes['/score'] = routes['/v1/score'];

createServer((req, res) => {
  if (req.method === 'GET') return json(res, 200, req.url === '/v1/models' ? { object: 'list', data: [{ id: 'stub', object: 'model' }, { id: 'fr', object: 'model', parent: 'stub' }] } : {});
  const parts = [];
  req.on('data', (p) => parts.push(p)).on('end', () => {
    const raw = Buffer.concat(parts), play = routes[req.url];
    if (!play) return json(res, 404, failed(`no ${req.url}`));
    play(res, req.headers['content-type'].startsWith('application/json') ? JSON.parse(raw) : null, raw);
  });
}).listen(Number(process.argv[2]), '127.0.0.1');
