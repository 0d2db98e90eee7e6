"""Matrices as numpy sees them: the same memory. Skipped where there is no numpy."""

import math
import unittest

import quire
from with_model import WithModel

try:
    import numpy
except ImportError:
    numpy = None


@unittest.skipIf(numpy is None, "needs numpy")
class Numpy(WithModel):
    def check_shared(self, view):
        """The array has the view's memory: what is written through one is read through the other."""
        array = numpy.asarray(view)
        self.assertEqual(array.shape, view.shape)
        self.assertTrue(numpy.shares_memory(array, numpy.asarray(view)))
        array[-1, -1] = 12345.0
        self.assertEqual(view[view.shape[0] - 1, view.shape[1] - 1], 12345.0)
        return array

    def test_logits_and_hidden_states(self):
        session = self.session(kv_type="f32")
        ids = [1, 300, 301, 302, 303, 304]
        session.feed_tokens(ids)
        session.prefill(score=True, keep_logits=True, keep_hidden=True)
        logits = numpy.asarray(session.logits(0, len(ids)))
        self.assertEqual((logits.dtype, logits.shape), (numpy.float32, (6, 320)))
        log_p = logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
        numpy.testing.assert_allclose(log_p[range(5), ids[1:]], session.scores(1, 5), rtol=1e-4)
        self.check_shared(session.logits(0, len(ids)))
        self.check_shared(session.hidden_states(0, len(ids)))

    def test_positions(self):
        view = quire.strategy_positions("full", train_len=10, n_keys=4)
        array = numpy.asarray(view)
        self.assertEqual(array.dtype, numpy.float64)
        self.assertEqual(array[3].tolist(), [3, 2, 1, 0])
        self.assertTrue(math.isnan(array[0, 1]))
        self.check_shared(view)


if __name__ == "__main__":
    unittest.main()
