# frozen_string_literal: true

# Does the steps of tests/conformance/*.json. tests/conformance/README.md says what they are.
class Conformance
  def initialize(model, folder)
    @model = model
    @folder = folder
    @sessions = {}
  end

  def close
    @sessions.each_value(&:close)
  end

  # The step's result, a hash of symbols. Raises Quire::Error.
  def run(step)
    arguments = step.except(:do, :expect, :error)
    arguments[:session] = @sessions.fetch(arguments[:session]) if arguments.key?(:session)
    send("do_#{step[:do]}", **arguments)
  end

  private

  def do_encode(text:, add_bos: true, parse_special: false, first: true)
    { ids: @model.tokenizer.encode(text, parse_special: parse_special, bos: add_bos, continued: !first) }
  end

  def do_decode(ids:)
    { text: @model.tokenizer.decode(ids) }
  end

  def do_describe_strategy(strategy:, train_len:)
    { canonical: Quire.describe_strategy(strategy, train_len: train_len) }
  end

  def do_session(as:, strategy: nil, options: {})
    old_after = options[:old_after].to_i # as in the struct: 0 is the default; the binding's 0 is at once
    options = options.except(:old_after)
    options[:old_after] = [old_after, 0].max unless old_after.zero?
    @sessions[as] = @model.session(strategy, **options)
    {}
  end

  def do_counts(session:)
    session.counts.then { |n_tokens, n_pending| { n_tokens: n_tokens, n_pending: n_pending } }
  end

  def do_feed(session:, text:, add_bos: true, parse_special: false)
    do_counts(session: session.feed(text, bos: add_bos, parse_special: parse_special))
  end

  def do_feed_tokens(session:, ids:)
    do_counts(session: session.feed_tokens(ids))
  end

  def do_feed_labelled(session:, text:, labels:)
    do_counts(session: session.feed(text, labels: labels))
  end

  def do_feed_messages(session:, messages:, template: nil, answer: true)
    do_counts(session: session.feed_messages(messages, template: template, answer: answer))
  end

  def do_stream(session:, options:, take: nil)
    options = options.transform_keys { |name| name == :n_top_logprobs ? :top_logprobs : name }
    events = []
    session.stream(**options) do |stream|
      stream.each do |event|
        events << event
        break if take && events.grep(Quire::Token).size == take
      end
    end
    result(events)
  end

  def result(events)
    found = events.grep(Quire::Token)
    last = events.last
    ending = last.kind == :end ? { finish: last.finish_reason.to_s, stop_index: last.stop_index || -1, end_token: last.token || -1 } : {}
    { tokens: found.map(&:token), logprobs: found.map(&:logprob), text: events.map(&:text).join, n_tokens: last.n_tokens,
      kinds: events.map { |event| event.kind.to_s }.chunk(&:itself).map(&:first), **ending }
  end

  def do_tokens(session:, first:, n:)
    { ids: session.tokens[first, n] }
  end

  def do_truncate(session:, n_tokens:)
    session.truncate(n_tokens)
    do_counts(session: session)
  end

  def do_discard_pending(session:)
    session.discard_pending
    do_counts(session: session)
  end

  def do_reset(session:)
    session.reset
    do_counts(session: session)
  end

  def do_edit(session:, text:, reuse: "exact")
    session.edit(text, reuse: reuse).to_h
  end

  def do_scores(session:, first:, n:)
    { values: session.scores(first, n) }
  end

  def do_argmax(session:, token:)
    row = session.logits(token).first
    { id: row.index(row.max) }
  end

  def do_stats(session:)
    session.stats
  end

  def do_strategy(session:)
    { canonical: session.strategy }
  end

  def do_label_attention(session:)
    { shares: session.label_attention.map { |label| label.values_at(:id, :share) } }
  end

  def do_label_shares(session:)
    { shares: session.label_shares.map { |label| label.values_at(:id, :share) } }
  end

  def do_passages(session:, most:)
    { passages: session.passages(most: most).map { |passage| passage.values_at(:feed, :begin, :end, :label_id) } }
  end

  def do_fork(session:, as:)
    @sessions[as] = session.fork
    {}
  end

  def do_save(session:, to:)
    session.save("#{@folder}/#{to}")
    {}
  end

  def do_load(from:, as:)
    do_counts(session: @sessions[as] = @model.load_session("#{@folder}/#{from}"))
  end

  def do_close(session:)
    session.close
    {}
  end

  # Numbers with a fraction agree to 1e-4, relative or absolute.
  def self.agree?(found, expected)
    case expected
    when Array then found.size == expected.size && found.zip(expected).all? { |pair| agree?(*pair) }
    when Float then (found - expected).abs <= 1e-4 * [1, expected.abs].max
    else found == expected
    end
  end
end
