# frozen_string_literal: true

require_relative "helper"
require_relative "scheduler"

# Streams: what is generated, how it ends, and on which thread and fiber.
class TestStreams < Minitest::Test
  include Helper

  def leaves
    model.session("dca").feed("The reader turns the leaves")
  end

  def whole
    @whole ||= tokens(leaves, 12)
  end

  # A session that has much to read.
  def long
    model.session("dca", overflow: :extrapolate, prefill_block: 16).feed_tokens(ids(200_000))
  end

  # All of it in one block, which takes seconds: until then there is no event.
  def silent
    model.session("dca", prefill_block: 65_536).feed_tokens(ids(60_000))
  end

  def test_events
    events = leaves.stream(max_tokens: 5, ignore_eos: true, &:to_a)
    assert_equal %i[prefill token end], events.map(&:kind).uniq
    assert_equal [:max_tokens, nil, nil], events.last.to_a.last(3)
    assert_equal Encoding::UTF_8, events[1].text.encoding
    assert_equal events.map(&:text).join, leaves.generate(5, ignore_eos: true).to_a.join
    assert_equal 2, leaves.generate(50, ignore_eos: true).lazy.map(&:size).first(2).size
  end

  def test_options
    assert_equal whole, tokens(leaves, 12, samplers: [[:top_k, { n: 1 }]])
    assert_equal whole, tokens(leaves, 12, max_undelivered: 8)
    assert_equal whole, tokens(leaves, 12, draft_tokens: 8, draft_match: 1)
    assert_equal tokens(leaves, 12, temperature: 1, seed: 7, top_k: 40), tokens(leaves, 12, samplers: { top_k: { n: 40 } }, seed: 7)
    refute_equal whole[0], tokens(leaves, 12, logit_bias: { whole[0] => -Float::INFINITY })[0]
    assert_equal 12, tokens(leaves, 12, samplers: [[:dry, { a: 0.8, b: 1.75, m: 2 }]], dry_breakers: []).size
    assert_raises(ArgumentError) { leaves.stream(max_token: 1) }
    assert_raises(ArgumentError) { leaves.stream(samplers: [[:best, {}]]) }
    assert_raises(ArgumentError) { leaves.stream(score: 1) }
    assert_raises(TypeError) { leaves.stream(max_tokens: "many") }
  end

  def test_top_logprobs
    first = leaves.stream(max_tokens: 1, top_logprobs: 3, ignore_eos: true) { |stream| stream.grep(Quire::Token).first }
    assert_equal [3, [first.token, first.logprob]], [first.top_logprobs.size, first.top_logprobs[0]]
  end

  def test_stop_conditions
    text = leaves.generate(12, ignore_eos: true).to_a.join
    stop = text[text.size / 2..]
    events = leaves.stream(max_tokens: 12, ignore_eos: true, stop: ["never this, surely", stop], &:to_a)
    assert_equal [:stop_string, 1], [events.last.finish_reason, events.last.stop_index]
    assert_equal text[0...text.index(stop)], events.map(&:text).join
    leaves.stream(max_tokens: 12, ignore_eos: true, max_undelivered: 8) do |stream|
      stream.next
      stream.add_stop("never this, surely", ids: [whole[5]])
      assert_equal [:stop_id, whole[5]], stream.to_a.last.to_h.values_at(:finish_reason, :token)
    end
  end

  def test_constrained
    leaves.stream(max_tokens: 3, ignore_eos: true, constrain: true) do |stream|
      [[300, 301], [17], nil].each do |allowed|
        stream.allow(allowed)
        token = stream.find { |event| event.kind == :token }.token
        assert_includes allowed || [token], token
      end
      assert_equal :max_tokens, stream.to_a.last.finish_reason
      assert_raises(RangeError) { stream.allow([320]) }
      assert_raises(TypeError) { stream.allow([1.5]) }
    end
  end

  def test_notices
    session = model.session("auto", expected_tokens: 100).feed("Every chapter began with a map.")
    first = session.stream(max_tokens: 2, &:next)
    assert_equal [:notice, :auto_choice, ""], [first.kind, first.code, first.text]
    assert_includes first.message, session.strategy
  end

  def test_blocks_close_what_they_opened
    session = leaves
    session.stream(max_tokens: 50, ignore_eos: true) { |stream| stream.each { |event| break if event.kind == :token } }
    session.feed("more")
    assert_raises(RuntimeError) { session.generate(50, ignore_eos: true) { raise "mine" } }
    session.feed("more")
    stream = session.stream(max_tokens: 50, ignore_eos: true)
    assert_status(:BUSY) { session.feed("more") }
    stream.close
    assert_status(:CLOSED) { stream.next }
  end

  def test_eight_threads
    sessions = Array.new(8) { leaves }
    threads = sessions.each_with_index.map { |session, i| Thread.new { tokens(session, 4 + i) } }
    assert_equal Array.new(8) { |i| whole.first(4 + i) }, threads.map(&:value)
  end

  def test_cancel_from_another_thread_while_reading
    session = long
    stream = session.stream(max_tokens: 10)
    canceller = Thread.new do # it runs while the other thread waits in C
      Thread.pass while session.n_tokens.zero?
      stream.cancel
    end
    assert_equal :cancelled, stream.to_a.last.finish_reason
    canceller.join
    assert_equal 200_000, session.counts.sum
    assert_operator session.n_pending, :>, 0
  end

  def test_cancel_in_a_signal_handler
    session = long
    stream = session.stream(max_tokens: 10)
    before = trap("USR1") { stream.cancel }
    sender = Thread.new do
      Thread.pass while session.n_tokens.zero?
      Process.kill("USR1", Process.pid)
    end
    assert_equal :cancelled, stream.to_a.last.finish_reason
    sender.join
  ensure
    trap("USR1", before || "DEFAULT")
  end

  def test_interrupts_of_a_thread_that_waits
    session = long
    begun = Thread::Queue.new
    waiting = Thread.new { session.stream(max_tokens: 1) { |stream| stream.each { |event| begun << event } } }
    begun.pop
    waiting.kill
    assert waiting.join(60)
    session.discard_pending # its stream was closed
  end

  # Makes each call of C that gives an event, or an error that it gives once, end by an interrupt that came during the wait.
  module Interrupting
    class << self
      attr_accessor :failing

      def each_call(failing: nil)
        @on = true
        @failing = failing
        yield
      ensure
        @on = false
      end

      def on? = @on
    end

    def call(*arguments)
      return super unless Interrupting.on?

      code = Interrupting.failing
      code ? Fiddle::Pointer.new(arguments.last)[0, 4] = [code].pack("l") : status = super
      status&.positive? ? status : raise(Interrupt)
    end
  end
  Quire::Stream::NEXT.singleton_class.prepend(Interrupting)

  def test_an_interrupt_of_the_wait_loses_nothing
    stream = leaves.stream(max_tokens: 12, ignore_eos: true)
    events = []
    until events.last&.kind == :end
      Interrupting.each_call { assert_raises(Interrupt) { stream.next } }
      events << stream.next(timeout: 60)
    end
    assert_equal whole, events.grep(Quire::Token).map(&:token)
    stream = leaves.stream(max_tokens: 1)
    code = Quire::Interface::CONSTANTS[:ERROR_NUMERIC]
    Interrupting.each_call(failing: code) { assert_raises(Interrupt) { stream.next } }
    assert_status(:NUMERIC) { stream.next }
    assert_equal :end, stream.to_a.last.kind
  end

  def test_fibers
    found = []
    sessions = Array.new(2) { leaves }
    Thread.new do
      Fiber.set_scheduler(Scheduler.new)
      sessions.each_with_index { |session, i| Fiber.schedule { found[i] = tokens(session, 12 - i) } }
    end.join
    assert_equal [whole, whole.first(11)], found
    assert_operator Scheduler.n_waits, :>, 0
  end

  def test_timeouts_and_deadlines
    silent.stream do |stream|
      assert_nil stream.next(timeout: 0)
      assert_nil stream.next(timeout: -1)
      refute_predicate stream, :ended?
    end
    stream = long.stream(deadline: 0.05)
    assert_equal [stream], IO.select([stream], nil, nil, 60).first
    assert stream.next(timeout: 0)
    assert_equal :deadline, stream.to_a.last.finish_reason
    assert_nil stream.next
    assert_predicate stream, :ended?
    assert_equal :deadline, long.stream(deadline: 1e-9).to_a.last.finish_reason # less than a millisecond is not none
  end

  def test_one_thread_at_a_time_waits_and_can_be_interrupted
    stream = silent.stream
    waiting = Thread.new { stream.next(timeout: 3600) }
    waiting.report_on_exception = false
    Thread.pass until stream.instance_variable_get(:@takers).any?
    assert_status(:BUSY) { stream.next(timeout: 0) while waiting.alive? }
    waiting.raise(Interrupt)
    assert_raises(Interrupt) { waiting.value }
    stream.cancel
    assert_equal :cancelled, stream.to_a.last.finish_reason
  end
end
