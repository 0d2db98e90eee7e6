//! The groups of constants as enums.

use crate::sys;

/// An enum for a group of constants. Numbers that this version does not know are kept.
macro_rules! c_enum {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $value:path,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// A number that this version of the crate does not know.
            Other(i32),
        }

        impl $name {
            /// What a number of `quire.h` means.
            pub fn from_raw(raw: i32) -> $name {
                match raw {
                    $($value => $name::$variant,)*
                    other => $name::Other(other),
                }
            }

            /// The number in `quire.h`.
            pub fn raw(self) -> i32 {
                match self {
                    $($name::$variant => $value,)*
                    $name::Other(raw) => raw,
                }
            }
        }

        impl From<i32> for $name {
            fn from(raw: i32) -> $name {
                $name::from_raw(raw)
            }
        }
    };
}
pub(crate) use c_enum;

c_enum! {
    /// How numbers are stored: of weights, of keys and values, of activations.
    pub enum ElementType {
        /// 32-bit floating point.
        F32 = sys::QUIRE_TYPE_F32,
        /// 16-bit floating point.
        F16 = sys::QUIRE_TYPE_F16,
        /// bfloat16.
        Bf16 = sys::QUIRE_TYPE_BF16,
        /// Weights, in blocks as GGUF files hold them.
        Q8_0 = sys::QUIRE_TYPE_Q8_0,
        /// Weights, likewise.
        Q4_0 = sys::QUIRE_TYPE_Q4_0,
        /// Weights, likewise.
        Q4_1 = sys::QUIRE_TYPE_Q4_1,
        /// Weights, likewise.
        Q5_0 = sys::QUIRE_TYPE_Q5_0,
        /// Weights, likewise.
        Q5_1 = sys::QUIRE_TYPE_Q5_1,
        /// Weights, likewise.
        Q4K = sys::QUIRE_TYPE_Q4_K,
        /// Weights, likewise.
        Q5K = sys::QUIRE_TYPE_Q5_K,
        /// Weights, likewise.
        Q6K = sys::QUIRE_TYPE_Q6_K,
        /// Weights, likewise.
        Q2K = sys::QUIRE_TYPE_Q2_K,
        /// Weights, likewise.
        Q3K = sys::QUIRE_TYPE_Q3_K,
        /// Weights, likewise.
        Iq4Nl = sys::QUIRE_TYPE_IQ4_NL,
        /// Weights, likewise.
        Iq4Xs = sys::QUIRE_TYPE_IQ4_XS,
        /// Whole numbers that share scales: activations, and keys and values of old text.
        Int8 = sys::QUIRE_TYPE_INT8,
        /// Codes of 4 bits: keys and values of old text.
        Int4 = sys::QUIRE_TYPE_INT4,
    }
}

impl ElementType {
    /// The number for an option that may be missing.
    pub(crate) fn or_default(value: Option<ElementType>) -> i32 {
        value.map_or(sys::QUIRE_TYPE_DEFAULT, ElementType::raw)
    }
}

c_enum! {
    /// How a model's files are read.
    pub enum LoadMode {
        /// Maps the files. A file that is shortened by another program kills the process: see `quire.h`.
        Mmap = sys::QUIRE_LOAD_MMAP,
        /// Reads each byte once; afterwards the files are not needed any more.
        Read = sys::QUIRE_LOAD_READ,
    }
}

c_enum! {
    /// What happens when prompt and `max_tokens` exceed the strategy's reach.
    pub enum Overflow {
        /// Opening the stream fails with [`Status::Overflow`](crate::Status::Overflow).
        Error = sys::QUIRE_OVERFLOW_ERROR,
        /// Compute up to the reach, then end with [`Finish::Reach`].
        Stop = sys::QUIRE_OVERFLOW_STOP,
        /// Go on with positions that the model has never seen.
        Extrapolate = sys::QUIRE_OVERFLOW_EXTRAPOLATE,
    }
}

c_enum! {
    /// The kinds of memory that chunks of keys and values lie in, from the fastest to the slowest.
    pub enum Tier {
        /// A device's own memory.
        Device = sys::QUIRE_TIER_DEVICE,
        /// The machine's memory.
        Host = sys::QUIRE_TIER_HOST,
        /// The machine's memory, compressed without loss.
        Compressed = sys::QUIRE_TIER_COMPRESSED,
        /// A temporary file of the session's.
        File = sys::QUIRE_TIER_FILE,
        /// The file that the session was loaded from; never written to.
        Snapshot = sys::QUIRE_TIER_SNAPSHOT,
    }
}

c_enum! {
    /// What a device is.
    pub enum DeviceKind {
        /// The machine's processor.
        Cpu = sys::QUIRE_DEVICE_CPU,
        /// A GPU that is used by CUDA.
        Cuda = sys::QUIRE_DEVICE_CUDA,
    }
}

c_enum! {
    /// How much a log line matters.
    pub enum LogLevel {
        /// Something failed.
        Error = sys::QUIRE_LOG_ERROR,
        /// Something is probably not as it was meant.
        Warning = sys::QUIRE_LOG_WARNING,
        /// What happens.
        Info = sys::QUIRE_LOG_INFO,
        /// What happens, in detail.
        Debug = sys::QUIRE_LOG_DEBUG,
    }
}

c_enum! {
    /// What an edit takes over of the text before it.
    #[derive(Default)]
    pub enum Reuse {
        /// What comes before the first token that differs.
        #[default]
        Exact = sys::QUIRE_EDIT_EXACT,
        /// Later chunks as well, where the same tokens stand in both texts: see `quire.h` for what that means.
        Approximate = sys::QUIRE_EDIT_APPROXIMATE,
    }
}

c_enum! {
    /// How a stream ended.
    pub enum Finish {
        /// `max_tokens` were generated.
        MaxTokens = sys::QUIRE_FINISH_MAX_TOKENS,
        /// An end-of-text token, which is not delivered.
        Eos = sys::QUIRE_FINISH_EOS,
        /// A stop id.
        StopId = sys::QUIRE_FINISH_STOP_ID,
        /// A stop string.
        StopString = sys::QUIRE_FINISH_STOP_STRING,
        /// The strategy's reach was used up.
        Reach = sys::QUIRE_FINISH_REACH,
        /// The stream was cancelled.
        Cancelled = sys::QUIRE_FINISH_CANCELLED,
        /// The deadline passed; unprocessed tokens stay pending.
        Deadline = sys::QUIRE_FINISH_DEADLINE,
    }
}

c_enum! {
    /// What a warning or notice is about.
    pub enum MessageCode {
        /// An adapter may need another RoPE base than the strategy has.
        AdapterBase = sys::QUIRE_WARNING_ADAPTER_BASE,
        /// Prompt and `max_tokens` exceed the reach ([`Overflow::Extrapolate`]).
        UntrainedPositions = sys::QUIRE_WARNING_UNTRAINED_POSITIONS,
        /// What the strategy `auto` chose, and why.
        AutoChoice = sys::QUIRE_NOTICE_AUTO_CHOICE,
    }
}

c_enum! {
    /// Why a stream computed a whole chunk of its text that might have been reused.
    pub enum ReuseMiss {
        /// It computed none, but for the one with the last token.
        Complete = sys::QUIRE_REUSE_COMPLETE,
        /// No session holds the same text up to there.
        Unknown = sys::QUIRE_REUSE_UNKNOWN,
        /// The session was created without prefix reuse.
        Off = sys::QUIRE_REUSE_OFF,
        /// The strategy takes no part.
        Strategy = sys::QUIRE_REUSE_STRATEGY,
        /// The stream asks for what only computing gives.
        Stream = sys::QUIRE_REUSE_STREAM,
        /// Positions of its own.
        Positions = sys::QUIRE_REUSE_POSITIONS,
        /// The session's budgets have no room for it.
        Memory = sys::QUIRE_REUSE_MEMORY,
        /// The text before it is approximate.
        Approximate = sys::QUIRE_REUSE_APPROXIMATE,
    }
}
