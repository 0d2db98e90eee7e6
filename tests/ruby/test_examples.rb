# frozen_string_literal: true

require "open3"
require "rbconfig"
require_relative "helper"

# Runs the examples on the embedded model: an answer, one that Ctrl-C ends, and two at once.
class TestExamples < Minitest::Test
  include Helper

  EMBEDDED = "#{Helper::SOURCE}/examples/embedded_model/model"
  TEXT = "The pass key is 4217. Remember it. 4217 is the pass key. The grass is green. The sky is blue."

  def command(example, file, *arguments)
    [RbConfig.ruby, "-w", "#{SOURCE}/examples/ruby/#{example}.rb", EMBEDDED, file, *arguments]
  end

  def document(text)
    "#{folder}/text".tap { |path| File.write(path, text) }
  end

  def test_ask
    out, err, status = Open3.capture3(*command("ask", document(TEXT), " What is the pass key? The pass key is", "8"))
    assert status.success?, err
    assert_match(/\A 4217.*\(max_tokens, \d+ tokens\)\n\z/m, out)
    assert_includes err, "tokens read"
  end

  def test_ctrl_c_ends_the_answer_alone
    # Reading this would take minutes: it is interrupted once it has begun.
    Open3.popen3(*command("ask", document(TEXT * 100_000), "Go on.")) do |_, out, err, process|
      err.readpartial(1)
      Process.kill("INT", process.pid)
      assert_match(/^\(cancelled, \d+ tokens\)$/, out.read)
      assert process.value.success?
    end
  end

  def test_forks
    out, err, status = Open3.capture3(*command("forks", document(TEXT), " What is the pass key? The pass key is", " The grass is", "6"))
    assert status.success?, err
    assert_match(/\A What is the pass key\? The pass key is\n 4217.*^ The grass is\n/m, out)
  end

  def test_overhead_program
    program = [RbConfig.ruby, "-w", "#{__dir__}/overhead.rb", EMBEDDED, "8"]
    out, err, status = Open3.capture3(*program, stdin_data: "\n\n")
    assert status.success?, err
    ready, *timed = out.lines.map { |line| JSON.parse(line) }
    assert_equal [true, [8, 8]], [ready["ready"], timed.map { |line| line["tokens"] }]
  end
end
