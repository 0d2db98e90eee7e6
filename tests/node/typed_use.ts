// Compiled with the package's types, strictly; never run. What must be refused is marked.

import { Event, QuireError, Runtime, Session, Store, describeSnapshot, describeStrategy, quantize, strategyPositions, verifySnapshot } from 'quire';

export async function use(path: string, signal: AbortSignal): Promise<string> {
  const runtime = new Runtime({ threads: 4, logLevel: 'info', log: (level, message) => `${level}: ${message}`, kvHostBudgetBytes: 1n << 30n });
  new Runtime({ nThreads: 4, nKeptLogLines: 10 });
  const model = await runtime.load(path, { weightType: 'q8_0', merge: [['adapter', 0.5], 'other'], signal, progress: (done, total) => done / total });
  const adapter = await model.loadAdapter('adapter', { signal });
  const session: Session = model.session({ strategy: 'dca', kvType: 'bf16', adapters: [[adapter, 2]], overflow: 'stop', prefixReuse: false });
  session.feed('text', { labels: [[0, 4, 7n], { begin: 0, end: 2, id: 1 }], parseSpecial: true }).feedTokens(new Int32Array(3));
  session.feedMessages([['system', 'Be brief.'], { role: 'user', content: 'Hello' }]);
  let text = '';
  const stream = session.stream({ maxTokens: 10, stop: ['a'], samplers: [{ kind: 'top_k', n: 1 }], logitBias: new Map([[5, 1.5]]), signal });
  for await (const event of stream) {
    text += event.text;
    if (event.kind === 'end') text += event.finishReason;
    if (event.kind === 'token' && event.topLogprobs) text += event.topLogprobs[0].logprob.toFixed(2);
  }
  for await (const piece of session.generate({ maxTokens: 5, stopStrings: ['a'], deadlineMs: 1000 })) text += piece.trim();
  const { nTokens } = await session.prefill();
  const bytes: number = session.stats().kvFullBytes + runtime.stats().prefixCacheBytes + (await session.toBuffer()).length;
  const rows: Float32Array[] = session.logits(0, nTokens);
  const store = await Store.open('store', { budgetBytes: bytes });
  const match = await store.find(model, session.tokens(), { kvType: 'f32' });
  await quantize(path, 'out.gguf', { recipe: 'q4_k_m', signal });
  await verifySnapshot(new URL('file:///saved.quire')).catch((error: QuireError) => error.offset);
  return text + match.reason + rows.length + describeStrategy('dca', { trainLen: 4096 }) + strategyPositions('full', { trainLen: 1, nKeys: 1 }).length
    + (await describeSnapshot(new Uint8Array())).version;
}

export function refused(session: Session, event: Event): void {
  // @ts-expect-error: no such type
  session.fork().stream({ maxTokens: 'many' });
  // @ts-expect-error: no such option
  session.stream({ maxToken: 1 });
  // @ts-expect-error: only of an end event
  event.finishReason;
  // @ts-expect-error: models make sessions
  new Session();
}
