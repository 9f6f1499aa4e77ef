//! `flextensor._native`: what the Python package needs from Rust.
//!
//! [`bridge`] finds the preloaded libflextensor.so, [`calls`] are its functions, [`marks`] are forward hooks, [`untold`] says of which forwards they tell nothing, [`around`] stands around forwards without being a hook,
//! [`phases`] is the phase machine, [`shape`] tells forwards apart, [`configuration`] is the option table and the
//! patterns, [`plan`] answers what-if questions, [`strategies`] is core's strategies, [`profiles`] checks profile files. Which modules and
//! tensors matter is decided in `python/flextensor/`; what happens to them, in the interposer.

mod around;
mod bridge;
mod calls;
mod configuration;
mod marks;
mod phases;
mod plan;
mod profiles;
mod shape;
mod strategies;
mod untold;

/// The whole surface of the module, as `python/flextensor/_native.pyi` describes it.
#[pyo3::pymodule]
mod _native {
    /// The version of the C interface that this module speaks.
    #[pymodule_export]
    const API_VERSION: u32 = crate::bridge::API_VERSION;
    #[pymodule_export]
    use crate::around::Around;
    #[pymodule_export]
    use crate::calls::{
        arena, attach, config_json, configure, connect, model_begin, model_course, model_drop, model_end,
        model_owner, model_phase, model_profiling, model_replan, model_strategy, model_weight, phase,
        profile_save, report_json, silence, wants, weight_private, weight_written,
    };
    #[pymodule_export]
    use crate::configuration::{
        check_configuration, option_table, resolve_configuration, select, unmatched_patterns,
    };
    #[pymodule_export]
    use crate::marks::{Mark, PassHook, SearchHook, inside_a_pass, pass_begin, pass_end, passes_left_out};
    #[pymodule_export]
    use crate::phases::Phases;
    #[pymodule_export]
    use crate::plan::{WhatIf, plot_results};
    #[pymodule_export]
    use crate::profiles::profile_checked;
    #[pymodule_export]
    use crate::shape::{hash_inputs, set_tensor_type};
    #[pymodule_export]
    use crate::strategies::{
        TransferTimes, allocate_blocks, assign_blocks, rearrange_transfers, strategy_check, strategy_judge,
        strategy_names, strategy_select, window_ms,
    };
}
