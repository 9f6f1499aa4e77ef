//! What fails: bad input, missing things, refused calls, injected faults. Each ends in right results with a clear line, or in an error that the program
//! sees; never in a wrong byte that is called right, a crash, or a hang.

use super::told::{BUDGET, said, story, streamed, survives, told_well};
use harness::{Outcome, Run};
use std::time::Duration;

/// The program ran to its end with right bytes, and stderr says this.
fn falls_back(run: Run, line: &str) -> Outcome {
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert!(outcome.stderr.contains(line), "no line with {line:?}: {}", outcome.describe());
    outcome
}

/// Ran as without us: nothing managed, one line.
fn runs_without_us(run: Run, line: &str) {
    let outcome = falls_back(run, line);
    assert_eq!(said(&outcome, "phase"), 99, "{}", outcome.describe());
    assert_eq!(outcome.stderr.trim_end().lines().count(), 1, "{}", outcome.describe());
    assert!(outcome.stderr.contains("the program runs without us"), "{}", outcome.describe());
}

#[test]
fn a_nonsense_budget_is_named_with_what_is_allowed_and_the_program_runs_without_us() {
    runs_without_us(streamed("reads in order").option("FT_MAX_GPU_MEM", "lots"), "lots");
    runs_without_us(streamed("reads in order").option("FT_MAX_GPU_MEM", "8G"), "8G");
    runs_without_us(streamed("reads in order").option("FT_MAX_GPU_MEM", "120%"), "120%");
}

#[test]
fn an_unreadable_file_is_named_and_the_program_runs_without_us() {
    let run = streamed("reads in order").option("FT_CONFIG_FILE", "/nowhere/flextensor.toml");
    runs_without_us(run, "/nowhere/flextensor.toml");
}

#[test]
fn an_unknown_option_is_named_with_a_suggestion_and_the_program_runs_without_us() {
    runs_without_us(streamed("reads in order").option("FT_MAX_GPU_MEMORY", "8GiB"), "FT_MAX_GPU_MEM");
}

#[test]
fn without_a_driver_the_program_sees_what_it_saw_without_us() {
    let without = story("reads in order").without_driver().start();
    let under = streamed("reads in order").without_driver().start();
    assert_eq!(without.status.code(), Some(2), "{}", without.describe());
    assert_eq!((under.status.code(), &under.stderr), (without.status.code(), &without.stderr));
}

#[test]
fn without_a_gpu_the_program_sees_what_it_saw_without_us() {
    let without = story("reads in order").sim("DEVICES", "0").start();
    let under = streamed("reads in order").sim("DEVICES", "0").start();
    assert_eq!(without.status.code(), Some(2), "{}", without.describe());
    assert_eq!((under.status.code(), &under.stderr), (without.status.code(), &without.stderr));
}

/// Weights that the driver can only put in GPU memory.
fn on_the_gpu(name: &str) -> Run {
    streamed(name).sim("NO_HOST_LOCATION", "1")
}

#[test]
fn too_little_host_memory_leaves_all_weights_where_they_are() {
    let run = on_the_gpu("reads in order").option("FT_HOST_MEM_LIMIT", "4MiB");
    let outcome = falls_back(run, "host_mem_limit allows 4 MiB");
    assert!(outcome.stderr.contains("the budget of 6 MiB is not held"), "{}", outcome.describe());
    assert_eq!(said(&outcome, "pages_in"), 0);
}

/// How often memory that is not pinned is said to be copied.
fn said_to_be_pageable(outcome: &Outcome) -> usize {
    outcome.stderr.matches("is copied from pageable memory, several times slower").count()
}

#[test]
fn weights_whose_shadows_the_driver_refuses_to_pin_are_streamed_from_pageable_memory_with_one_line() {
    let run = || on_the_gpu("writes by a kernel").sim("FAULTS", "cuMemHostRegister_v2@*=2");
    for run in [run(), run().option("FT_CHECK", "1")] {
        let outcome = told_well(run);
        assert_eq!(said_to_be_pageable(&outcome), 1, "{}", outcome.describe());
        assert_eq!(said(&outcome, "pinned_bytes"), 0, "{}", outcome.describe());
        assert!(said(&outcome, "weights_gpu_bytes") <= BUDGET, "{}", outcome.describe());
    }
}

#[test]
fn weights_that_are_not_to_be_pinned_are_streamed_from_pageable_memory_with_one_line() {
    let run = || on_the_gpu("writes by a kernel").option("FT_PINNED_MEMORY", "0");
    for run in [run(), run().option("FT_CHECK", "1")] {
        let outcome = told_well(run);
        let line = "pinned_memory is off: what is streamed is copied from pageable memory";
        assert_eq!(outcome.stderr.matches(line).count(), 1, "{}", outcome.describe());
        assert_eq!(said(&outcome, "pinned_bytes"), 0, "{}", outcome.describe());
        assert!(said(&outcome, "host_bytes") > 16 << 20, "{}", outcome.describe());
        assert!(said(&outcome, "weights_gpu_bytes") <= BUDGET, "{}", outcome.describe());
    }
}

/// As where a container may pin so much and no more.
#[test]
fn what_the_driver_pins_is_pinned_and_the_rest_is_pageable() {
    let whole = told_well(on_the_gpu("reads in order"));
    // Three are for trying, the others are shadows, whose number is the plan's matter.
    assert!(whole.journal_number("/calls/cuMemHostRegister_v2") > 6, "{}", whole.describe());
    let outcome = told_well(on_the_gpu("reads in order").sim("FAULTS", "cuMemHostRegister_v2@6+=2"));
    assert_eq!(said_to_be_pageable(&outcome), 1, "{}", outcome.describe());
    let pinned = said(&outcome, "pinned_bytes");
    assert!(pinned > 32 << 20 && pinned < said(&whole, "pinned_bytes"), "{}", outcome.describe());
}

/// A shadow is refused whole, then its second piece is, and the driver does not take the first piece back: what it keeps counts once, and stays. Which call is a
/// shadow's first depends on what is tried before.
#[test]
fn a_piece_that_the_driver_keeps_registered_counts_once_and_is_right() {
    // What is pinned besides shadows: the buffer for the link, and less for other trials than a piece.
    const OTHERS: u64 = (32 << 20) + (64 << 20) - 1;
    let mut kept = 0;
    for first in 4..=6 {
        let run = on_the_gpu("weights of many pieces").option("FT_MAX_GPU_MEM", "84MiB").sim("LATE_US", "0");
        let refused = format!("cuMemHostRegister_v2@{first}=2,cuMemHostRegister_v2@{}+=2", first + 2);
        let outcome = told_well(run.sim("FAULTS", format!("{refused},cuMemHostUnregister@*=999")));
        let [pinned, pageable, shadows] =
            ["pinned", "pageable", "host"].map(|key| said(&outcome, &format!("{key}_bytes of shadows")));
        assert!(pinned + pageable <= shadows + OTHERS, "{}", outcome.describe());
        kept += u32::from(pageable < shadows);
        assert_eq!(said(&outcome, "pageable at last"), 0, "{}", outcome.describe());
    }
    assert!(kept > 0, "no piece was kept");
}

/// A weight that is split has its shadow behind addresses that the driver holds, and may be refused pinning there.
#[test]
fn a_shadow_behind_the_addresses_of_a_view_may_be_pageable() {
    // Three are for trying: the link, and whether there are views.
    let outcome = told_well(on_the_gpu("reads in order").sim("FAULTS", "cuMemHostRegister_v2@4+=2"));
    assert_eq!(said_to_be_pageable(&outcome), 1, "{}", outcome.describe());
    assert_ne!(said(&outcome, "host_bytes") % (4 << 20), 0, "no weight was split: {}", outcome.describe());
}

#[test]
fn a_registration_that_is_refused_once_is_made_in_pieces() {
    let whole = told_well(on_the_gpu("reads in order"));
    for nth in 1..=whole.journal_number("/calls/cuMemHostRegister_v2") {
        let fault = format!("cuMemHostRegister_v2@{nth}=1");
        let outcome = told_well(on_the_gpu("reads in order").sim("FAULTS", fault));
        assert_eq!(said_to_be_pageable(&outcome), 0, "call {nth}: {}", outcome.describe());
        assert!(said(&outcome, "pinned_bytes") > 32 << 20, "call {nth}: {}", outcome.describe());
    }
}

#[test]
fn a_budget_below_the_largest_use_is_said_to_be_missed_and_the_smallest_is_named() {
    let run = streamed("reads in order").option("FT_MAX_GPU_MEM", "2MiB");
    let outcome = falls_back(run, "the budget of 2 MiB cannot be met; the smallest that can is");
    assert!(said(&outcome, "weights_gpu_bytes") <= 6 << 20, "{}", outcome.describe());
}

#[test]
fn a_driver_without_virtual_memory_calls_serves_its_own_memory() {
    for call in ["cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess"] {
        let outcome = streamed("reads in order").sim("FAULTS", format!("{call}@*=801")).start();
        outcome.assert_success().assert_nothing_detected();
        assert_eq!(said(&outcome, "mismatches"), 0, "{call}: {}", outcome.describe());
    }
}

#[test]
fn an_allocation_that_does_not_fit_is_out_of_memory_for_the_program() {
    let outcome = on_the_gpu("reads in order").sim("MEM", "16MiB").start();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.describe());
    assert!(outcome.stderr.contains("cuMemAlloc returned 2"), "{}", outcome.describe());
}

#[test]
fn memory_that_is_refused_to_a_weight_that_must_be_private_is_an_error_of_the_launch() {
    // As many calls as the six weights of two pages take, and one for host memory; the next ones are for private pages.
    let run = on_the_gpu("a graph captured after the switch").sim("FAULTS", "cuMemCreate@14+=2");
    let outcome = run.start();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.describe());
    assert!(outcome.stderr.contains("cuLaunchKernel returned 2"), "{}", outcome.describe());
}

#[test]
fn a_weight_that_is_refused_private_pages_half_way_is_read_from_the_ring_as_before() {
    let name = "private memory that is refused";
    let whole = told_well(on_the_gpu(name));
    assert_eq!(said(&whole, "refused"), 0);
    for call in ["cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2"] {
        let outcome = told_well(on_the_gpu(name).sim("FAULTS", format!("{call}@private.1=999")));
        assert_eq!(said(&outcome, "refused"), 1, "{call}: {}", outcome.describe());
    }
    // Pages that cannot be put back either are an error for everybody who needs them.
    let outcome = on_the_gpu(name).sim("FAULTS", "cuMemSetAccess@private.1+=999").start();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.describe());
    outcome.assert_nothing_detected();
}

#[test]
fn owners_and_weights_that_are_named_after_their_model_ended_are_refused() {
    let outcome = told_well(streamed("named after the end"));
    assert_eq!(said(&outcome, "refused"), 1, "{}", outcome.describe());
}

#[test]
fn a_length_that_makes_no_sense_is_the_drivers_to_refuse() {
    let outcome = told_well(streamed("a length that makes no sense").sim("STRICT", "0"));
    assert_eq!((said(&outcome, "filled"), said(&outcome, "copied")), (1, 1), "{}", outcome.describe());
}

#[test]
fn a_switch_over_that_fails_half_way_puts_every_weight_back() {
    let mut failed = 0;
    // The regions take the first twelve calls; the ring, and what views need, the next ones.
    for call in (13..32).step_by(3) {
        let outcome = on_the_gpu("reads in order").sim("FAULTS", format!("cuMemMap@{call}=999")).start();
        outcome.assert_success().assert_nothing_detected();
        assert_eq!(said(&outcome, "mismatches"), 0, "call {call}: {}", outcome.describe());
        failed += u32::from(outcome.stderr.contains("remapping failed"));
    }
    assert!(failed > 2, "{failed} of the refused calls were the switch-over's");
}

/// Neither the ring's pages nor their own can be mapped any more: there is no ring that could answer for them.
#[test]
fn weights_that_lose_their_memory_in_a_switch_over_are_an_error_of_the_launches_that_show_them() {
    let mut lost = 0;
    // The regions take the first twelve calls; what views need, and the ring, the next ones.
    for call in 13..18 {
        let fault = format!("cuMemMap@{call}+=999");
        let outcome = on_the_gpu("reads in order").sim("FAULTS", &fault).sim("STRICT", "0").start();
        survives(&outcome, &fault);
        let said = outcome.stderr.contains("weights have lost their memory");
        lost += u32::from(said && outcome.stderr.contains("cuLaunchKernel returned 999"));
    }
    assert!(lost > 0, "no weight has lost its memory");
}

/// Calls of ours that a driver may refuse at any moment.
const CALLS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxPushCurrent_v2",
    "cuCtxSynchronize",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetParamInfo",
    "cuKernelGetParamInfo",
    "cuMemAddressReserve",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemHostRegister_v2",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamCreateWithPriority",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// Each of them fails once, early, in the middle, and late in the program's life, or always from then on.
fn sweep(calls: &[&str], code: &str) {
    let whole = told_well(streamed("reads in any order"));
    for call in calls {
        let count = whole.journal_number(&format!("/calls/{call}"));
        let mut moments = vec![1, count * 2 / 3, count];
        moments.retain(|moment| (1..=count).contains(moment));
        moments.dedup();
        for moment in moments {
            for more in ["", "+"] {
                let fault = format!("{call}@{moment}{more}={code}");
                let run = streamed("reads in any order").sim("FAULTS", &fault);
                let run = run.sim("STRICT", "0").sim("LATE_US", "0");
                survives(&run.limit(Duration::from_secs(60)).start(), &fault);
            }
        }
    }
}

/// The last event of a model's last pass cannot be recorded: the weights are freed all the same, and nobody waits for that event.
#[test]
fn a_ring_that_failed_waits_for_nothing_that_was_never_recorded() {
    let run = || streamed("freed and built again").option("FT_BUDGET_WHILE_LOADING", "1");
    let whole = told_well(run());
    let count = whole.journal_number("/calls/cuEventRecord");
    let mut failed = 0;
    // How often events are recorded differs a little from run to run: further moments are tried until one is the ring's.
    for (at, moment) in
        [count / 2, count, count - 1, count - 2, count * 3 / 4, count / 3].into_iter().enumerate()
    {
        if at >= 2 && failed > 0 {
            break;
        }
        let fault = format!("cuEventRecord@{moment}=999");
        let outcome = run().sim("FAULTS", &fault).sim("STRICT", "0").start();
        failed += u32::from(outcome.stderr.contains("the ring of GPU 0 failed"));
        survives(&outcome, &fault);
    }
    assert!(failed > 0, "no ring failed");
}

#[test]
fn no_refused_call_is_a_wrong_byte_a_crash_or_a_hang_first_half() {
    sweep(&CALLS[..CALLS.len() / 2], "999");
}

#[test]
fn no_refused_call_is_a_wrong_byte_a_crash_or_a_hang_second_half() {
    sweep(&CALLS[CALLS.len() / 2..], "2");
}
