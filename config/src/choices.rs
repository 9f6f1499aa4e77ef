//! The options that are one word of a list, as types. The words are written here once; the option table refers to them.

use serde::{Deserialize, Serialize};

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// The words, in documented order.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The word of this value.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }
    )+};
}

choices! {
    /// What decides how much GPU memory weights may hold.
    MemoryMode {
        /// The budget if one is set.
        Auto = "auto",
        /// A budget found from the GPU's free memory.
        Fit = "fit",
        /// No budget.
        Latency = "latency",
    }
    /// Least severe message that is shown.
    LogLevel {
        /// Only failures.
        Error = "error",
        /// Failures and fallbacks.
        Warn = "warn",
        /// The summary line as well.
        Notice = "notice",
        /// Steps of the run.
        Info = "info",
        /// Decisions one by one.
        Debug = "debug",
    }
    /// Whether a plan may be replaced during a run.
    Replan {
        /// When times or order drift.
        Auto = "auto",
        /// Never.
        Off = "off",
    }
    /// Whether the runtime verifies its own promises.
    CheckMode {
        /// No.
        Off = "off",
        /// What is found is said and counted.
        On = "on",
        /// What is found first ends the process.
        Abort = "abort",
    }
    /// How the Python interface pins a tensor.
    PinnedMemoryMode {
        /// By a copy into torch's pinned allocator.
        Torch = "torch",
        /// In place.
        HostRegister = "host_register",
    }
    /// How the Python interface describes transfers.
    TransferMode {
        /// Blocks allocated ahead.
        AllocationBlockTransfer = "allocation_block_transfer",
        /// Blocks managed directly.
        RawBlockTransfer = "raw_block_transfer",
        /// No blocks.
        Strategy = "strategy",
    }
    /// How weights are put in place while profiling.
    ProfileMode {
        /// Views of one rotating block.
        View = "view",
        /// Property getters.
        Getter = "getter",
        /// Rewritten call arguments.
        TorchFunction = "torch_function",
    }
    /// What is measured in each pass.
    OffloadTiming {
        /// Nothing.
        Off = "off",
        /// Events of eager passes.
        Eager = "eager",
        /// External events inside captured graphs.
        CudaGraph = "cuda_graph",
    }
    /// What happens when the end of a captured piece must wait for copies.
    PiecewisePrefetch {
        /// Nothing is said.
        Off = "off",
        /// A warning.
        Warn = "warn",
        /// An error.
        Error = "error",
    }
}

/// Planning strategies that can be named.
pub const STRATEGY_NAMES: &[&str] = &[
    "KnapsackStrategy",
    "KnapsackBlockStrategy",
    "AdaptiveKnapsackStrategy",
    "GreedyStrategy",
    "NthLayerStrategy",
    "GlobalOffloadStrategy",
    "GlobalTensorSelectionStrategy",
    "AdaptiveStrategy",
    "BudgetFillStrategy",
    "BudgetFillGreedyStrategy",
    "BudgetFillLayerDEStrategy",
    "BudgetFillTensorDEStrategy",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_that_can_be_named_exists() {
        assert_eq!(STRATEGY_NAMES, flextensor_core::strategy::names());
    }

    #[test]
    fn a_word_reads_back_as_its_value() {
        for (value, word) in [(LogLevel::Notice, "notice"), (LogLevel::Debug, "debug")] {
            assert_eq!(value.as_str(), word);
            assert_eq!(serde_json::to_string(&value).unwrap(), format!("\"{word}\""));
            assert!(LogLevel::NAMES.contains(&word));
        }
    }
}
