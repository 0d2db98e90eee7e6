# frozen_string_literal: true

require "pathname"
require "stringio"
require_relative "helper"

# Sessions in files, IOs and stores.
class TestSnapshots < Minitest::Test
  include Helper

  OPTIONS = { kv_type: :f32, prefix_reuse: false }.freeze
  STRATEGY = "dca(kv_chunk=16)"

  # An IO whose reads and writes fail after so many.
  class Failing < StringIO
    attr_accessor :good

    def write(data)
      count
      super
    end

    def read(*size)
      count
      super
    end

    private

    def count
      raise Errno::ENOSPC, "the shelf" if @good && (@good -= 1).negative?
    end
  end

  def read(count)
    model.session(STRATEGY, **OPTIONS).feed_tokens(ids(count)).tap(&:prefill)
  end

  def io(data = "", good: nil)
    Failing.new(data.b).tap { |made| made.good = good }
  end

  def test_files
    path = "#{folder}/saved.quire"
    session = read(300)
    seen = []
    session.save(path, whole: true, progress: ->(*numbers) { seen = numbers })
    assert_equal(*seen)
    described = Quire.describe_snapshot(path)
    assert_equal [300, File.size(path), model.metadata("identity")],
                 [described[:n_tokens], described[:bytes], described[:origin][:model]]
    Quire.verify_snapshot(path)
    named = "#{folder}/caf\xE9.quire".dup.force_encoding(Encoding::ISO_8859_1)
    session.save(named)
    assert File.exist?(named)
    loaded = model.load_session(path, prefix_reuse: false)
    assert_equal session.tokens, loaded.tokens
    assert_equal tokens(session, 12), tokens(loaded, 12)
    assert_operator loaded.tier(:snapshot)[:bytes_read], :>, 0
    assert_status(:INVALID_ARGUMENT, "its strategy is dca(") { model.load_session(path, "full") }
    assert_status(:NOT_FOUND) { model.load_session("#{folder}/none") }
    File.open(path, "r+b") { |file| file.tap { file.seek(described[:bytes] / 2) }.write("\xFF\x00\xFF\x00".b) }
    assert_status(:BAD_FILE, "is damaged") { Quire.verify_snapshot(path) }
  end

  def test_ios
    path = "#{folder}/saved.quire"
    session = read(200)
    session.save(path)
    memory = io
    session.save(memory)
    assert_equal File.binread(path), memory.string.b
    assert_equal Quire.describe_snapshot(path), Quire.describe_snapshot(memory)
    Quire.verify_snapshot(memory)
    loaded = model.load_session(memory, prefix_reuse: false)
    fork = loaded.fork
    loaded.close
    GC.start
    assert_equal tokens(session, 12), tokens(fork, 12)
    File.open(path, "rb") { |file| assert_equal 200, model.load_session(file).n_tokens }
  end

  def test_pathnames
    path = Pathname.new(folder) + "saved.quire"
    session = read(200)
    session.save(path)
    assert_equal 200, Quire.describe_snapshot(path)[:n_tokens]
    Quire.verify_snapshot(path)
    assert_equal 200, model.load_session(path, prefix_reuse: false).n_tokens
    assert_equal path.binread, io.tap { |copy| session.save(copy) }.string.b
  end

  def test_ios_that_fail
    session = read(100)
    whole = io
    session.save(whole)
    3.times do |good|
      assert_raises(Errno::ENOSPC) { session.save(io(good: good)) }
      assert_raises(Errno::ENOSPC) { Quire.verify_snapshot(io(whole.string, good: good)) }
    end
    assert_raises(Errno::ENOSPC) { model.load_session(io(whole.string, good: 0)) }
    long = io(whole.string)
    long.define_singleton_method(:read) { |size| "x" * (size + 1) }
    assert_raises(IOError) { Quire.describe_snapshot(long) }
    thrown = io.tap { |it| it.define_singleton_method(:write) { |_| throw :out } }
    assert_status(:CANCELLED, "throw") { catch(:out) { session.save(thrown) } }
    assert_status(:BAD_FILE) { model.load_session(io(whole.string.byteslice(0, 100))) }
    assert_equal 100, session.n_tokens
  end

  def test_stores
    assert_status(:NOT_FOUND) { Quire::Store.new("#{folder}/store", must_exist: true) }
    store = Quire::Store.new("#{folder}/store", budget_bytes: 10_000_000)
    session = read(300)
    text = ids(400)
    assert_equal "the store is empty", store.find(model, text, STRATEGY, **OPTIONS)[:reason]
    assert_status(:NOT_FOUND, "the store is empty") { store.load(model, text, STRATEGY, **OPTIONS) }
    seen = []
    put = store.put(session, title: "Größe", progress: ->(*numbers) { seen = numbers })
    assert_equal [300, seen[1]], [put[:n_tokens], seen[0]]
    assert_equal 300, store.find(model, text, STRATEGY, **OPTIONS)[:n_computed]
    assert_includes store.find(model, text, STRATEGY)[:reason], "its kv_type is f32; here it is f16"
    assert_equal [put[:name], "Größe", 300], store.describe[:entries][0].values_at(:name, :title, :n_tokens)
    store.load(model, text, STRATEGY, **OPTIONS) { |loaded| assert_equal 300, loaded.n_tokens }
    store.verify(put[:name])
    cancel = Quire::Cancel.new.tap(&:trigger)
    assert_status(:CANCELLED) { store.verify(put[:name], cancel: cancel) }
    store.remove(put[:name])
    assert_empty store.describe[:entries]
    assert_status(:INVALID_ARGUMENT) { store.remove("../store.lock") }
    store.close
    assert_status(:CLOSED, "this Store was closed") { store.describe }
  end
end
