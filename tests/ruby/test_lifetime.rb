# frozen_string_literal: true

require "open3"
require "rbconfig"
require "timeout"
require_relative "helper"

# Handles, threads, callbacks and the collector: in which order they may go.
class TestLifetime < Minitest::Test
  include Helper

  def test_handles_may_go_in_any_order
    %i[runtime model session stream].permutation do |order|
      held = { runtime: Quire::Runtime.new(threads: 1) }
      held[:model] = held[:runtime].load(MODEL)
      held[:session] = held[:model].session.feed("Rain fell")
      held[:stream] = held[:session].stream(max_tokens: 3, ignore_eos: true)
      order.each_with_index do |name, i|
        i.even? ? held.delete(name).reference.close : Thread.new { held.delete(name).reference.close }.join
        assert_equal :max_tokens, held[:stream].to_a.last.finish_reason if i == 1 && held[:stream]
      end
    end
  end

  def test_a_session_does_all_when_its_model_was_closed
    own = runtime.load(MODEL)
    session = own.session("dca").feed("Rain fell")
    own.close
    session.prefill
    session.fork.stream(max_tokens: 1, constrain: true) do |stream|
      stream.allow([5])
      assert_equal [5], stream.grep(Quire::Token).map(&:token)
    end
  end

  def test_the_collector_drops_references
    200.times do |i|
      model.session.feed("Rain").stream(max_tokens: 1)
      GC.start if (i % 50).zero?
    end
    GC.start
    open = ObjectSpace.each_object(Quire::Session).count
    assert_operator open, :<, 100
  end

  def resident_bytes
    File.read("/proc/self/statm").split[1].to_i * 4096
  end

  def test_a_thousand_sessions_leave_nothing
    after_warm_up = nil
    1200.times do |i|
      session = model.session("dca").feed("Rain fell on the harbour")
      tokens(session, 1)
      GC.start if (i % 50).zero?
      after_warm_up = resident_bytes if i == 200
    end
    GC.start
    assert_operator resident_bytes - after_warm_up, :<, 8_000_000
  end

  def test_closing_a_runtime_ends_everything
    session = model.session.feed_tokens(ids(200))
    stream = session.stream(max_tokens: 1)
    2.times { runtime.close }
    assert_status(:CLOSED) { stream.to_a }
    assert_status(:CLOSED) { model.session }
    assert_status(:CLOSED) { runtime.devices }
  end

  # A thread may close what another one uses, which is dropped when that call has returned.
  def test_closing_what_is_in_use
    loaded = model
    loading = Thread.new { loaded.load_adapter("#{ADAPTERS}/everything", progress: ->(*) { loaded.close }) }
    assert_kind_of Quire::Adapter, loading.value
    assert_status(:CLOSED, "this Model was closed") { loaded.info }
    @model = nil
  end

  # The line that one asked about may be another's when it is taken.
  def test_log_lines_taken_by_several_threads
    logging = Quire::Runtime.new(threads: 1, kept_log_lines: 1000, log_level: :info)
    done = false
    takers = Array.new(3) do
      Thread.new do
        found = []
        logging.log_lines { |_, line| found << line } until done
        logging.log_lines { |_, line| found << line }
        found
      end
    end
    1.upto(40) do |i|
      path = "#{folder}/#{'long' * i}"
      File.symlink(MODEL, path)
      logging.load(path).close
    end
    done = true
    lines = takers.flat_map(&:value)
    assert_equal 40, lines.size
    assert(lines.all? { |line| line.start_with?("loaded /") && !line.include?("\0") })
    logging.close
  end

  # A compaction moves what it can; C knows the places of what it calls back.
  def test_a_compaction_during_calls
    skip "this Ruby has no compaction" unless GC.respond_to?(:compact)

    compacting = Thread.new { loop { GC.compact } }
    20.times do
      n = 0
      Array.new(20_000) { Object.new } # leaves room below what is made from here on
      runtime.load(MODEL, progress: ->(*) { n += 1 }) { |loaded| assert_operator loaded.vocab_size, :>, 0 }
      assert_operator n, :>, 0
    end
  ensure
    compacting&.kill&.join
  end

  # A string whose bytes C reads while another thread changes it. Were they freed, the system would take their pages back.
  def test_a_text_that_changes_during_a_call
    tokenizer = runtime.tokenizer(MODEL)
    text = "Rain fell on the harbour. " * 100_000
    expected = tokenizer.encode(text).size
    5.times do
      given = text + ""
      reading = Thread.new { tokenizer.encode(given).size }
      Thread.pass until reading.stop? || !reading.alive? # it let go of Ruby's lock
      given.replace("")
      assert_equal expected, reading.value
    end
  end

  # It has none of the library's threads, for which a close would wait.
  def test_a_forked_process_leaves_alone_what_it_has
    script = <<~RUBY
      require "quire"
      Quire::Runtime.open(threads: 2) do |runtime|
        session = runtime.load(#{MODEL.inspect}).session("dca").feed_tokens([5] * 50_000)
        session.stream(max_tokens: 100) do |stream|
          stream.next
          if (child = fork)
            exit Process.wait2(child).last.exitstatus
          else
            closed = [-> { session.counts }, -> { stream.cancel }, -> { stream.to_a }, -> { stream.next }].count do |use|
              use.call && false
            rescue Quire::ClosedError
              true
            end
            exit closed
          end
        end
      end
    RUBY
    10.times do
      said, status = Timeout.timeout(60) { Open3.capture2e(RbConfig.ruby, "-w", "-e", script) }
      assert_equal ["", 4], [said, status.exitstatus]
    end
  end

  def test_progress_may_fail
    mine = Class.new(StandardError)
    assert_raises(mine) { runtime.load(MODEL, progress: ->(*) { raise mine }) }
    assert_raises(Timeout::Error) do
      Timeout.timeout(0.05) { runtime.load(MODEL, progress: ->(*) { Thread.pass until Thread.pending_interrupt? }) }
    end
    assert_status(:CANCELLED, "throw or break") { catch(:out) { runtime.load(MODEL, progress: ->(*) { throw :out }) } }
    cancel = Quire::Cancel.new
    assert_status(:CANCELLED) { runtime.load(MODEL, cancel: cancel, progress: ->(*) { cancel.trigger }) }
    assert_status(:CANCELLED) { runtime.load(MODEL, cancel: cancel) }
    path = "#{folder}/never.quire"
    session = model.session.feed("Rain").tap(&:prefill)
    assert_raises(mine) { session.save(path, progress: ->(*) { raise mine }) }
    refute_path_exists path
    n_calls = 0
    50.times { runtime.load(MODEL, progress: ->(done, total) { (n_calls += 1) && (GC.start if done == total) }).close }
    assert_operator n_calls, :>=, 50
    assert_raises(TypeError) { runtime.load(MODEL, progress: 5) }
    assert_raises(TypeError) { runtime.load(MODEL, cancel: model) }
  end

  def test_log_lines
    runtime = Quire::Runtime.new(threads: 1, kept_log_lines: 2, log_level: :info)
    assert_empty runtime.log_lines.to_a
    3.times { runtime.load(MODEL).close }
    lines = runtime.log_lines.to_a
    assert_equal [[:info, 0]] * 2, lines.map { |level, _, n_lost| [level, n_lost] }
    lines.each { |_, text, _| assert_includes text, File.basename(MODEL) }
    runtime.load(MODEL).close
    assert_equal 1, runtime.log_lines.first.last
    runtime.close
    assert_raises(Quire::ClosedError) { runtime.log_lines.to_a }
    assert_raises(Quire::InvalidArgumentError) { Quire::Runtime.new(kept_log_lines: -1) }
  end

  # With work under way and nothing closed; also in a child, which must only go (or call exec) and not use the library.
  def test_exit_in_the_middle
    script = <<~RUBY
      require "quire"
      runtime = Quire::Runtime.new(threads: 4)
      session = runtime.load(#{MODEL.inspect}).session("dca", prefill_block: 16).feed_tokens([5] * 50_000)
      stream = session.stream(max_tokens: 100)
      stream.next
      Process.wait(fork { exit! })
      print "leaving"
    RUBY
    5.times do
      out, status = Open3.capture2e(RbConfig.ruby, "-w", "-e", script)
      assert_equal ["leaving", true], [out, status.success?]
    end
  end
end
