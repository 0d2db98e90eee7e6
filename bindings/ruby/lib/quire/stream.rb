# frozen_string_literal: true

require "io/wait"
require_relative "event"
require_relative "handle"
require_relative "options"
require_relative "raw"

module Quire
  # A computation on a session: Enumerable, of events. One thread at a time takes them; cancel and close may come from any
  # thread, and from a signal handler. Other Ruby threads run while one waits here, and under a Fiber scheduler other fibers.
  class Stream < Handle
    include Enumerable

    NEXT = Library::FUNCTIONS.fetch(:stream_next)
    TOKEN, DONE = Interface::CONSTANTS.values_at(:EVENT_TOKEN, :END)
    POLL = 0.1 # seconds that interrupts of a thread may have to wait
    POLL_MS = (POLL * 1000).round
    LAYOUT = Interface::STRUCTS[:quire_event][:fields].transform_values { |field| field[:offset] }.freeze
    # kind and token, n_tokens, text and its length, logprob, n_top_logprobs
    PLAIN = "@#{LAYOUT[:kind]}ll@#{LAYOUT[:n_tokens]}q@#{LAYOUT[:text]}JJ@#{LAYOUT[:logprob]}f@#{LAYOUT[:top_logprobs] + 8}J".freeze
    KIND = "@#{LAYOUT[:kind]}l".freeze
    CODE = "l" # of a quire_error
    NOTHING = "\0\0\0\0".b.freeze
    NO_TEXT = ""

    def initialize(session, max_tokens, **options)
      @vocab_size = options.delete(:vocab_size)
      super(Raw.stream_open(session, Options.stream(max_tokens, options)))
      @address = reference.address # good until it is collected: close does not release
      @ended = false
      @takers = []
      memory = Memory.new(nil)
      @event = memory.blank(:quire_event)
      @error = memory.blank(:quire_error)
      @event_address = memory.address(@event)
      @error_address = memory.address(@error)
      @event_kind = Fiddle::Pointer.new(@event_address + LAYOUT[:kind])
      @memory = memory
    end

    # The next event; nil at the end, or where none came within `timeout` seconds (see ended?).
    def next(timeout: nil)
      scheduled = Fiber.current_scheduler
      deadline = timeout && now + timeout
      loop do
        left = deadline && [deadline - now, 0].max
        event = take(scheduled ? 0 : ([left || POLL, POLL].min * 1000).ceil)
        return event if event || @ended || left&.zero?

        to_io.wait_readable(left) if scheduled
      end
    end

    # Whether the end event was taken and asked for once more.
    def ended?
      @ended
    end

    # Calls the block with each event up to the end event; without one, an enumerator.
    def each
      return enum_for(:each) unless block_given?

      in_scheduler = Fiber.current_scheduler
      until @ended
        event = in_scheduler ? self.next : take(POLL_MS)
        yield event if event
      end
      self
    end

    # Asks it to stop: the next event is the End.
    def cancel
      Raw.stream_cancel(reference)
    end

    # Stops it, waits until nothing works for it, and leaves the session at the last delivered token.
    def close
      Raw.stream_close(reference) unless reference.foreign?
      nil
    end

    # More strings and ids that end the answer, for all tokens not delivered yet.
    def add_stop(strings = [], ids: [])
      Raw.stream_add_stop_strings(reference, Array(strings))
      Raw.stream_add_stop_ids(reference, ids)
    end

    # With constrain: true, the ids that may come next; nil: any. Before the first token and after each one.
    def allow(ids)
      return Raw.stream_allow(reference, []) if ids.nil?

      words = Array.new((@vocab_size + 31) / 32, 0)
      ids.each do |id|
        raise TypeError, "ids: expected an integer, not #{id.inspect}" unless id.is_a?(Integer)
        raise RangeError, "#{id} is outside the vocabulary" unless (0...@vocab_size).cover?(id)

        words[id / 32] |= 1 << (id % 32)
      end
      Raw.stream_allow(reference, words)
    end

    # A file descriptor that is readable when an event waits, and sometimes when there is none yet: take events with a timeout
    # of 0. Only wait for it: IO.select([stream]) does too.
    def to_io
      @to_io ||= IO.for_fd(Raw.stream_get_wait_handle(reference).first, autoclose: false)
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    # The next event, or nil. An event's text lives until the next one is asked for, so two threads must not. What C has given
    # stays in @event or @error until it is taken from there: an interrupt may come before.
    def take(milliseconds)
      @takers.push(true)
      reference.refuse if reference.foreign?
      raise BusyError, "another thread waits for an event of this stream" if @takers.size > 1

      status = not_taken || NEXT.call(@address, milliseconds, @event_address, @error_address)
      return without_event(status) unless status.zero?

      event = made
      @event_kind[0, 4] = NOTHING
      event
    ensure
      @takers.pop
    end

    # The status of what C gave to a call that was interrupted.
    def not_taken
      code = @error.unpack1(CODE)
      code.zero? && @event.unpack1(KIND).zero? ? nil : code
    end

    # The event that C has given.
    def made
      kind, token, n_tokens, text, length, logprob, n_top = @event.unpack(PLAIN)
      return Event.of(@event) unless kind == TOKEN && n_top.zero?

      text = length.zero? ? NO_TEXT : Fiddle::Pointer.new(text)[0, length].force_encoding(Encoding::UTF_8)
      Token.new(text, token, logprob, n_tokens, nil)
    end

    def without_event(status)
      fail_with(status) if status.negative?
      @ended = true if status == DONE
      nil
    end

    def fail_with(status)
      error = Memory.hash(@error, :quire_error)
      Fiddle::Pointer.new(@error_address)[0, 4] = NOTHING
      raise Error.for_code(status).new(error[:message], code: status, offset: error[:offset], os_error: error[:os_error])
    end
  end
end
