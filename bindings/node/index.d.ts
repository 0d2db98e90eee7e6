// The types of the package. What the structs of quire.h say of their fields is in interface.d.ts, which is generated from it.

import type * as C from './interface';

/** The options of A with those of B in their place. */
type With<A, B, Without extends string = never> = Omit<A, keyof B | 'flags' | Without> & B;

export type TensorType = 'default' | 'f32' | 'f16' | 'bf16' | 'q8_0' | 'q4_0' | 'q4_1' | 'q5_0' | 'q5_1' | 'q4_k' | 'q5_k' | 'q6_k' | 'q2_k' | 'q3_k' | 'iq4_nl' | 'iq4_xs' | 'int8' | 'int4';
export type LogLevel = 'error' | 'warning' | 'info' | 'debug';
export type Tier = 'device' | 'host' | 'compressed' | 'file' | 'snapshot';
export type FinishReason = 'max_tokens' | 'eos' | 'stop_id' | 'stop_string' | 'reach' | 'cancelled' | 'deadline';
/** UTF-8 where it is not a string. */
export type Text = string | Uint8Array;
export type Path = string | URL;
export type Ids = ArrayLike<number> & (Int32Array | readonly number[]);
export type Message = readonly [role: string, text: string] | { role: string; text: string } | { role: string; content: string };
/** Bytes [begin, end) of the text, and the caller's number for them. */
export type Label = readonly [begin: number, end: number, id: number | bigint] | C.Label;

/** A failed call of the library. */
export class QuireError extends Error {
  constructor(status: string, message: string, more?: { code?: number; offset?: number; osError?: number; cause?: unknown });
  /** The status's name without QUIRE_ERROR_, such as 'BAD_FILE'. */
  readonly status: string;
  readonly code: number;
  /** The byte, column or token index that the message speaks of. */
  readonly offset: number | undefined;
  /** errno where the system was the cause, else 0. */
  readonly osError: number;
}

/** Of calls that return a promise. A signal that aborts rejects it with the status CANCELLED; its reason is the error's cause. */
export interface Watched {
  /** Called with bytes. If it throws, the call is cancelled, and the promise rejected with what it threw. */
  progress?: (done: number, total: number) => void;
  signal?: AbortSignal;
}

export type RuntimeOptions = With<C.RuntimeOptions, {
  /** 0: one for each usable core; also nThreads. */
  threads?: number;
  /** Also nIoThreads. */
  ioThreads?: number;
  log?: (level: LogLevel, message: string) => void;
  logLevel?: LogLevel;
  /** How many lines of the log are kept for takeLogLine(); also nKeptLogLines. */
  keptLogLines?: number;
}>;

export interface LogLine {
  level: LogLevel;
  text: string;
  /** Lines lost between the one before and this one, for want of room. */
  nLost: number | bigint;
}

type Activations = 'f32' | 'bf16' | 'int8';

export type ModelOptions = With<C.ModelOptions, {
  load?: 'default' | 'mmap' | 'read';
  weightType?: TensorType;
  /** Also activationType. */
  activations?: Activations;
  activationType?: Activations;
  merge?: (Path | [path: Path, scale: number])[];
  /** Also beaconPath. */
  beacon?: Path;
  beaconPath?: Path;
  packedDirectory?: Path;
}, 'progress' | 'cancel'>;

export type SessionOptions = With<C.SessionOptions, {
  kvType?: TensorType;
  kvOldType?: TensorType;
  /** Tokens; 0: all chunks before the token's own are old. */
  oldAfter?: number;
  overflow?: 'default' | 'error' | 'stop' | 'extrapolate';
  kvFileDirectory?: Path;
  adapters?: (Adapter | [adapter: Adapter, scale: number])[];
  /** false: it takes nothing over from other sessions, and gives them nothing. */
  prefixReuse?: boolean;
  /** true: layers with a window of their own drop nothing, so that the text can be cut and edited anywhere. */
  keepBehindWindows?: boolean;
}>;

export type Sampler = Omit<C.Sampler, 'kind'> & { kind: 'temperature' | 'top_k' | 'top_p' | 'min_p' | 'typical' | 'penalties' | 'dry' };

export type StreamOptions = With<C.StreamOptions, {
  /** Also stopStrings. */
  stop?: string | string[];
  stopStrings?: string | string[];
  /** Also nTopLogprobs. */
  topLogprobs?: number;
  /** Milliseconds; also deadlineMs. */
  deadline?: number;
  samplers?: Sampler[];
  logitBias?: Iterable<readonly [token: number, bias: number]>;
  score?: boolean;
  keepLogits?: boolean;
  ignoreEos?: boolean;
  constrain?: boolean;
  keepHidden?: boolean;
  cite?: boolean;
  /** Cancels the stream, which then ends with the finishReason 'cancelled'. */
  signal?: AbortSignal;
}>;

export interface TextOptions { parseSpecial?: boolean; bos?: boolean }
export interface ChatOptions { template?: string; templateName?: string; date?: string; answer?: boolean; thinking?: boolean }
export interface TokenRange { firstToken?: number; nTokens?: number }
export interface StrategyOptions { trainLen: number; nHeads?: number; expectedTokens?: number }

/** All texts of a stream, one after the other, are the answer. nTokens: of the session after the event. */
export interface Token { kind: 'token'; text: string; nTokens: number; token: number; logprob: number; topLogprobs: C.TokenLogprob[] | undefined }
export interface Prefill {
  kind: 'prefill'; text: string; nTokens: number; total: number; done: number; reused: number; moved: number; nPerSecond: number; reuseMiss: string;
}
export interface End { kind: 'end'; text: string; nTokens: number; finishReason: FinishReason; token: number | undefined; stopIndex: number | undefined }
/** For a person. */
export interface Notice { kind: 'warning' | 'notice'; text: string; nTokens: number; message: string; code: string | number }
export type Event = Token | Prefill | End | Notice;

declare class Handle {
  protected constructor();
  /** Drops the reference now; calls afterwards throw CLOSED. A second close does nothing. The collector closes what is not reachable. */
  close(): void;
}

/** Threads and memory; everything else hangs off one. */
export class Runtime extends Handle {
  constructor(options?: RuntimeOptions);
  load(path: Path, options?: ModelOptions & Watched): Promise<Model>;
  loadTokenizer(path: Path): Promise<Tokenizer>;
  devices(): (Omit<C.DeviceInfo, 'flags' | 'kind'> & { kind: 'cpu' | 'cuda'; usable: boolean })[];
  stats(): C.RuntimeStats;
  /** The oldest line of the log that was kept and not taken yet. */
  takeLogLine(): LogLine | undefined;
  /** A reach without limit is Infinity. */
  planMemory(path: Path, nTokens: number, options?: SessionOptions & { model?: ModelOptions }): Promise<C.MemoryPlan>;
  check(path: Path, options?: SessionOptions & { model?: ModelOptions }): Promise<void>;
  describeStrategy(path: Path, options?: SessionOptions & { model?: ModelOptions }): Promise<string>;
  /** Stops all that runs on it, and waits for that. */
  close(): void;
  closeAsync(): Promise<void>;
}

/** Weights, which any number of sessions share. */
export class Model extends Handle {
  info(): Omit<C.ModelInfo, 'weightType'> & { weightType: TensorType };
  metadata(key: string): string;
  tokenizer(): Tokenizer;
  session(options?: SessionOptions): Session;
  loadSession(from: Path | Uint8Array, options?: SessionOptions): Promise<Session>;
  check(options?: SessionOptions): void;
  describeStrategy(options?: SessionOptions): string;
  estimate(nTokens: number, options?: SessionOptions): Promise<C.RateEstimate>;
  loadAdapter(path: Path, watched?: Watched): Promise<Adapter>;
}

/** A LoRA adapter of one model. Sessions keep those that they use. */
export class Adapter extends Handle {
  info(): Omit<C.AdapterInfo, 'flags'> & Record<'replacesEmbedding' | 'replacesLmHead' | 'replacesNorms' | 'changesQueriesOrKeys', boolean>;
  metadata(key: 'identity' | 'base_model'): string;
}

/** Text to token ids, ids to text, and conversations. */
export class Tokenizer extends Handle {
  encode(text: Text, options?: TextOptions & { continued?: boolean }): Int32Array;
  decode(ids: Ids, options?: { special?: boolean }): string;
  tokenBytes(id: number): Uint8Array;
  readonly vocabSize: number;
  readonly bos: number | undefined;
  isEos(id: number): boolean;
  chatTemplate(): string;
  renderChat(messages: readonly Message[], options?: ChatOptions): string;
  encodeChat(messages: readonly Message[], options?: ChatOptions): Int32Array;
}

/** A text that a model has read, and its KV cache. While a promise of it is pending, most other calls throw BUSY. */
export class Session extends Handle {
  feed(text: Text, options?: TextOptions & { labels?: readonly Label[] }): this;
  feedAsync(text: Text, options?: TextOptions & { labels?: readonly Label[] }): Promise<this>;
  feedTokens(ids: Ids, options?: { positions?: readonly (number | bigint)[] | BigInt64Array }): this;
  feedMessages(messages: readonly Message[], options?: ChatOptions): this;
  edit(text: Text | Ids, options?: TextOptions & { reuse?: 'exact' | 'approximate'; rereadTokens?: number; labels?: readonly Label[] }):
    { nTokens: number; nKept: number; nMoved: number };
  discardPending(): void;
  reset(): void;
  truncate(nTokens: number): void;
  fillRandom(nTokens: number, seed?: number | bigint): Promise<void>;
  stream(options?: StreamOptions): Stream;
  generate(options?: StreamOptions): AsyncGenerator<string, void, undefined>;
  prefill(options?: StreamOptions): Promise<End>;
  fork(): Session;
  save(path: Path, options?: Watched & { whole?: boolean }): Promise<void>;
  /** A RangeError where the snapshot is larger than a Buffer can be (4 GiB in Node.js 20): then save(path). */
  toBuffer(options?: Watched): Promise<Uint8Array>;
  counts(): { nTokens: number; nPending: number };
  tokens(): Int32Array;
  logits(firstToken?: number, nRows?: number): Float32Array[];
  hiddenStates(firstToken: number, nRows?: number): Float32Array[];
  scores(firstToken: number, n: number): Float32Array;
  labelAttention(): C.LabelAttention[];
  passages(options?: TokenRange & { most?: number }): C.Passage[];
  labelShares(options?: TokenRange): C.LabelAttention[];
  /** A reach without limit is Infinity. */
  stats(): C.SessionStats;
  tier(name: Tier): C.TierStats;
  probes(): C.SessionProbes;
  strategy(): string;
  fingerprint(): string;
  /** Ends an open stream, waits for it, and frees the KV cache. */
  close(): void;
  closeAsync(): Promise<void>;
}

/** A computation on a session. A loop closes it, whether it comes to the end, fails or is left early. */
export class Stream extends Handle implements AsyncIterableIterator<Event> {
  [Symbol.asyncIterator](): AsyncIterableIterator<Event>;
  next(): Promise<IteratorResult<Event, undefined>>;
  return(value?: undefined): Promise<IteratorResult<Event, undefined>>;
  /** The next event is then the end event. */
  cancel(): void;
  addStop(strings: string | readonly string[], ids?: Ids): void;
  /** undefined: any. */
  allow(ids: Iterable<number> | undefined): void;
  readonly waitHandle: number;
  /** Waits until nothing works for it; the session stands at the last token taken. */
  close(): void;
  closeAsync(): Promise<void>;
}

/** A directory of documents that were read, which processes share. */
export class Store extends Handle {
  static open(path: Path, options?: { budgetBytes?: number; mustExist?: boolean }): Promise<Store>;
  put(session: Session, options?: Watched & { title?: string }): Promise<{ name: string; nTokens: number; nComputed: number }>;
  find(model: Model, ids: Ids, options?: SessionOptions): Promise<C.StoreMatch>;
  load(model: Model, ids: Ids, options?: SessionOptions): Promise<Session>;
  remove(name: string): Promise<void>;
  verify(name: string, watched?: Watched): Promise<void>;
  describe(): Promise<any>;
}

export function describeSnapshot(from: Path | Uint8Array): Promise<any>;
export function verifySnapshot(from: Path | Uint8Array, watched?: Watched): Promise<void>;
export function describeStrategy(strategy: string, options: StrategyOptions): string;
export function strategies(options: StrategyOptions): any[];
export function strategyPositions(strategy: string, options: StrategyOptions & {
  nKeys: number; firstQuery?: number; nQueries?: number; head?: number; queries?: 'text' | 'condensed'; keys?: 'text' | 'condensed';
}): Float64Array[];
export function chatTemplates(): { name: string; description: string }[];
export function describeFiles(path: Path): Promise<any>;
export function quantizations(): string[];
export function quantize(path: Path, out: Path, options?: Watched & { recipe?: string; threads?: number; nThreads?: number }): Promise<void>;
export function libraryVersion(): string;
