//! Links of a sampling chain.

use crate::sys;

/// One link of a sampling chain: what it does to the candidates that the links before it left.
///
/// ```no_run
/// use quire::{Sampler, StreamOptions};
/// let samplers = vec![Sampler::Temperature(0.8), Sampler::TopK(40), Sampler::TopP(0.95)];
/// let options = StreamOptions { samplers, seed: 7, ..StreamOptions::new(100) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Sampler {
    /// Logits divided by this, in (0, 1e6].
    Temperature(f32),
    /// The so many most probable; 1 is greedy.
    TopK(i32),
    /// The smallest set of the most probable that has at least this probability, in (0, 1].
    TopP(f32),
    /// At least so many times as probable as the most probable, in (0, 1].
    MinP(f32),
    /// The smallest set with at least this probability of the tokens whose -log p is nearest to the entropy.
    Typical(f32),
    /// Of tokens that stood in the text before.
    Penalties {
        /// Among the last so many tokens of the session; 0: all.
        last: i32,
        /// Positive logits are divided by it, negative ones multiplied; 1: nothing.
        repetition: f32,
        /// Subtracted for each occurrence.
        frequency: f32,
        /// Subtracted once.
        presence: f32,
    },
    /// DRY, "Don't Repeat Yourself": of tokens that would go on with a repetition.
    Dry {
        /// Among the last so many tokens of the session; 0: all.
        last: i32,
        /// From this length of a repetition on; usual: 2.
        min_length: i32,
        /// Usual: 0.8.
        multiplier: f32,
        /// Usual: 1.75.
        base: f32,
    },
}

impl Sampler {
    pub(crate) fn raw(&self) -> sys::quire_sampler {
        let (kind, n, m, a, b, c) = match *self {
            Sampler::Temperature(a) => (sys::QUIRE_SAMPLER_TEMPERATURE, 0, 0, a, 0.0, 0.0),
            Sampler::TopK(n) => (sys::QUIRE_SAMPLER_TOP_K, n, 0, 0.0, 0.0, 0.0),
            Sampler::TopP(a) => (sys::QUIRE_SAMPLER_TOP_P, 0, 0, a, 0.0, 0.0),
            Sampler::MinP(a) => (sys::QUIRE_SAMPLER_MIN_P, 0, 0, a, 0.0, 0.0),
            Sampler::Typical(a) => (sys::QUIRE_SAMPLER_TYPICAL, 0, 0, a, 0.0, 0.0),
            Sampler::Penalties { last, repetition, frequency, presence } => {
                (sys::QUIRE_SAMPLER_PENALTIES, last, 0, repetition, frequency, presence)
            }
            Sampler::Dry { last, min_length, multiplier, base } => {
                (sys::QUIRE_SAMPLER_DRY, last, min_length, multiplier, base, 0.0)
            }
        };
        sys::quire_sampler { kind, n, m, a, b, c }
    }
}
