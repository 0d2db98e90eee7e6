# frozen_string_literal: true

require_relative "helper"

# What sessions hold: tiers, forks, edits, passages, logits.
class TestSessions < Minitest::Test
  include Helper

  def test_tiers
    session = model.session(kv_host_budget_bytes: 60_000, kv_file_directory: "/tmp", prefill_block: 16)
    session.feed_tokens(ids(200)).prefill
    host = session.tier(:host)
    assert_operator host[:bytes_peak], :<=, host[:budget_bytes]
    assert_operator session.tier(:file)[:bytes_written], :>, 0
    assert_raises(ArgumentError) { session.tier(:attic) }
    assert_raises(ArgumentError) { model.session(kv_attic_budget_bytes: 1) }
    assert_status(:BUDGET) { model.session(kv_compressed_budget_bytes: 1) }
    assert_equal 32, session.fingerprint.size
  end

  def test_forks
    session = model.session("dca").feed_tokens(ids(40))
    session.prefill
    session.fork do |fork|
      assert_equal ids(40), fork.tokens
      fork.feed_tokens([5, 6])
      assert_equal [40, 2], fork.counts
      fork.truncate(40)
      assert_equal tokens(session, 10), tokens(fork, 10)
    end
  end

  def test_windows_of_some_layers
    Quire::Runtime.open(threads: 2) do |own|
      some_layers = own.load(MODEL.sub("text_256", "qwen2_window_layers"))
      [false, true].each do |keeps|
        session = some_layers.session("full(kv_chunk=16)", keep_behind_windows: keeps).feed_tokens([5] * 240)
        session.prefill
        assert_equal keeps, session.stats[:kv_chunks_dropped].zero?
      end
    end
  end

  def test_edits
    before = Array.new(200) { |i| 3 + (i * i * i + 7 * i) % 299 }
    changed = before[0, 80] + before.drop(100)
    session = model.session("dca(kv_chunk=16)", prefix_reuse: false).feed_tokens(before)
    session.prefill
    session.fork { |fork| assert_equal [180, 80, 0], fork.edit(changed).to_a }
    assert_equal Quire::Session::Edited.new(180, 80, 96), session.edit(changed, reuse: :approximate)
    prefill = session.stream { |stream| stream.grep(Quire::Prefill).last }
    assert_equal [96, 4, 96], [prefill.moved, prefill.done, session.stats[:n_moved]]
    assert_equal 0, session.edit("The sky is grey.", labels: [[0, 7, 1]]).n_kept
    assert_raises(ArgumentError) { session.edit(before, reuse: :some) }
    assert_status(:UNSUPPORTED, "longheads") { model.session("longheads(chunk=16, chunks=4)").edit(before, reuse: :approximate) }
  end

  def test_passages
    pages = Array.new(12) { |i| "page #{i} tells of the number #{i * 7} and of nothing else. " }
    at = 0
    labels = pages.each_with_index.map { |page, i| [at...(at += page.bytesize), 50 + i] }
    session = model.session("dca").feed(pages.join, labels: labels)
    document = session.n_pending
    session << "which number is it? "
    tokens(session, 4, cite: true, cite_end: document)
    passages = session.passages(most: 3)
    assert_equal [3, 50 + passages[0][:label]], [passages.size, passages[0][:label_id]]
    assert_in_delta 1, session.label_shares.sum { |label| label[:share] }
    assert_equal 12, session.label_shares(first_token: session.n_tokens - 1, n_tokens: 1).size
    assert_status(:UNSUPPORTED) { session.label_attention }
  end

  def test_logits_scores_and_embeddings
    given = [1, 300, 301, 302, 303, 304]
    session = model.session(kv_type: :f32).feed_tokens(given)
    session.prefill(score: true, keep_logits: true, keep_hidden: true)
    logits = session.logits(0, 6)
    scores = session.scores(0, 6)
    assert_equal [6, 320, model.info[:hidden_size]], [logits.size, logits[0].size, session.hidden_states(0, 6)[5].size]
    assert_predicate scores[0], :nan?
    (1..5).each do |i|
      assert_in_delta logits[i - 1][given[i]] - Math.log(logits[i - 1].sum { |logit| Math.exp(logit) }), scores[i], 1e-4
    end
    assert_equal logits.last, session.logits.first
  end

  def test_positions
    session = model.session("full").feed_tokens([5, 6], positions: [9, 11])
    assert_equal [0, 2], session.counts
    assert_raises(ArgumentError) { session.feed_tokens([5, 6], positions: [9]) }
    assert_status(:UNSUPPORTED) { model.session("dca").feed_tokens([5], positions: [9]) }
    session.discard_pending
    session.reset
    assert_equal [0, 0], session.counts
  end

  def test_prefix_cache
    Quire::Runtime.open(threads: 2, prefix_cache_bytes: 1 << 20) do |caching|
      of_it = caching.load(MODEL)
      found = Array.new(2) do
        of_it.session("dca(kv_chunk=32)") do |session|
          events = session.feed_tokens(ids(300)).stream(max_tokens: 4, ignore_eos: true, &:to_a)
          prefill = events.grep(Quire::Prefill).last
          [prefill.reused, prefill.reuse_miss, events.grep(Quire::Token).map(&:token)]
        end
      end
      assert_equal [[0, :unknown], [288, :complete]], found.map { |each| each.first(2) }
      assert_equal found[0].last, found[1].last
      assert_equal 288, caching.stats[:prefix_cache_tokens]
    end
  end

  def test_experimental
    session = model.session(overflow: :extrapolate)
    session.fill_random(100, seed: 7)
    assert_equal [100, 0], session.counts
    tokens(session, 1)
    assert_operator session.probes[:tasks_after_cancel], :>=, 0
  end
end
