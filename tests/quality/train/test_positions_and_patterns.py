"""Position samplers and attention patterns against worked examples; needs torch alone, trains nothing.

    python -m pytest tests/quality/train            or            python -m unittest discover tests/quality/train
"""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch

import patterns
import positions


def seen(matrix, query):
    return matrix[query].nonzero().flatten().tolist()


class Positions(unittest.TestCase):
    def test_pose_golden(self):
        got = positions.skipped_positions([3, 5], [0, 10]).tolist()
        self.assertEqual(got, [0, 1, 2, 13, 14, 15, 16, 17])
        self.assertEqual(positions.skipped_positions([3, 5], [0, 24]).tolist()[-1], 31)
        with self.assertRaises(ValueError):
            positions.skipped_positions([3, 5], [4, 3])

    def test_pose_draws(self):
        g = torch.Generator().manual_seed(0)
        for n_chunks in (1, 2, 3, 8):
            for _ in range(200):
                got = positions.pose_positions(8, 32, n_chunks, g)
                self.assertEqual((got[0].item(), len(got)), (0, 8))
                self.assertTrue((got.diff() >= 1).all() and got[-1] <= 31)
                self.assertLessEqual((got.diff() > 1).sum().item(), n_chunks - 1)
        with self.assertRaises(ValueError):
            positions.pose_positions(8, 7, 2, g)

    def test_pose_reaches_every_distance(self):
        g, distances = torch.Generator().manual_seed(0), set()
        for _ in range(500):
            p = positions.pose_positions(8, 32, 2, g)
            distances |= set((p[:, None] - p[None]).flatten().tolist())
        self.assertEqual(distances, set(range(-31, 32)))

    def test_same_seed_same_positions(self):
        first, second = (positions.pose_positions(64, 512, 2, torch.Generator().manual_seed(3)) for _ in range(2))
        self.assertTrue(torch.equal(first, second))

    def test_random_positions(self):
        got = positions.random_positions(8, 32, torch.Generator().manual_seed(0))
        self.assertTrue((got.diff() >= 1).all() and got[0] >= 0 and got[-1] < 32 and len(got) == 8)


class Patterns(unittest.TestCase):
    def test_flow(self):
        met = {0: [0, 1, 2, 3], 1: [None, 0, 1, 2], 2: [None, None, 0, 1], 3: [None, None, None, 0]}
        for heads in (4, 8):                                    # right roll; future chunks leave only the query
            stack = patterns.pattern("scca_flow", 16, 4, heads)
            for head in range(heads):
                for chunk, key_chunk in enumerate(met[head * 4 // heads]):
                    others = [j for j in seen(stack[head], 4 * chunk + 3) if j != 4 * chunk + 3]
                    want = [] if key_chunk is None else list(range(4 * key_chunk, 4 * key_chunk + 4))
                    self.assertEqual(others, [j for j in want if j != 4 * chunk + 3])
        one, three = patterns.scca_flow(16, 4, 1), patterns.scca_flow(16, 4, 3)
        golden = {0: [0], 3: [3], 4: [0, 1, 2, 3, 4], 7: [0, 1, 2, 3, 7], 8: [4, 5, 6, 7, 8], 15: [8, 9, 10, 11, 15]}
        self.assertEqual({q: seen(one, q) for q in golden}, golden)
        self.assertEqual((seen(three, 11), seen(three, 12)), ([11], [0, 1, 2, 3, 12]))

    def test_fixed(self):
        golden = {0: [0], 1: [0, 1], 2: [0, 1, 2], 3: [0, 1, 3], 4: [2, 3, 4], 5: [2, 3, 4, 5], 6: [2, 3, 4, 5, 6],
                  7: [2, 3, 4, 5, 7], 8: [6, 7, 8], 11: [6, 7, 8, 9, 11], 15: [10, 11, 12, 13, 15]}
        stack = patterns.pattern("scca_fixed", 16, 4)
        for rolled in stack[:2]:
            self.assertEqual({q: seen(rolled, q) for q in golden}, golden)
        for own in stack[2:]:
            self.assertEqual([seen(own, q) for q in (0, 3, 4, 14)], [[0], [0, 1, 2, 3], [4], [12, 13, 14]])

    def test_sda(self):
        classes = {2: [[0, 2, 4, 6], [1, 3, 5, 7]], 4: [[0, 4], [1, 5], [2, 6], [3, 7]]}
        for dilation, sets in classes.items():
            for head in range(8):
                m, mine = patterns.sda(8, dilation, head), sets[head % dilation]
                for q in range(8):
                    self.assertEqual(seen(m, q), [j for j in mine if j <= q] if q in mine else [])
        kv = [seen(patterns.sda(8, t, h, "kv"), 5) for t in (2, 4) for h in range(t)]
        self.assertEqual(kv, [[0, 2, 4, 5], [1, 3, 5], [0, 4, 5], [1, 5], [2, 5], [3, 5]])

    def test_s2(self):
        golden = {0: [0], 1: [0, 1], 2: [2], 3: [2, 3], 4: [2, 3, 4], 5: [2, 3, 4, 5], 6: [6], 9: [6, 7, 8, 9],
                  13: [10, 11, 12, 13], 14: [14], 15: [14, 15]}
        stack = patterns.pattern("s2", 16, 4)
        for shifted in stack[2:]:
            self.assertEqual({q: seen(shifted, q) for q in golden}, golden)
        self.assertEqual([seen(stack[0], q) for q in (0, 3, 4)], [[0], [0, 1, 2, 3], [4]])

    def test_long_mixed_table(self):
        got = patterns.pattern("long_mixed", 16, 4)
        want = [patterns.sda(16, 2, 0), patterns.sda(16, 4, 1), patterns.sda(16, 4, 2), patterns.scca_fixed(16, 4)]
        self.assertTrue(torch.equal(got, torch.stack(want)))
        with self.assertRaises(ValueError):
            patterns.pattern("long_mixed", 16, 4, heads=8)

    def test_causal_and_self(self):
        for name in ("full", "s2", "scca_fixed", "scca_flow", "long_mixed"):
            stack = patterns.pattern(name, 40, 8, reading="kv")
            self.assertFalse(stack.triu(1).any(), name)
            self.assertTrue(stack.diagonal(dim1=1, dim2=2).all(), name)


if __name__ == "__main__":
    unittest.main()
