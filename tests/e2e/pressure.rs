//! GPU memory that runs short after weights were placed: they make room, nothing that is read is wrong, and they come back when memory is free again. Stories are in
//! `programs/scenario/pressure.rs`.

use super::told::{on_a_gpu_of, said, survives};
use harness::{Outcome, Run};
use std::time::Duration;

const PAGE: u64 = 2 << 20;

/// Six weights of two pages.
const MODEL: u64 = 24 << 20;

/// Weights of 24 MiB, and room for two blocks of the cache of five that grows.
const GPU: u64 = 34 << 20;

fn short(name: &str) -> Run {
    on_a_gpu_of(GPU, name)
}

/// Learnt, ran to its end, every byte right, and nothing detected.
fn told_right(run: Run) -> Outcome {
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "phase"), 3, "{}", outcome.describe());
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    outcome
}

/// The same, and weights made room so that no allocation failed.
fn made_room(run: Run) -> Outcome {
    let outcome = told_right(run);
    assert!(said(&outcome, "demotions") > 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "failed"), 0, "{}", outcome.describe());
    outcome
}

#[test]
fn weights_make_room_for_a_cache_that_grows_and_come_back_when_it_shrinks() {
    let outcome = made_room(short("a cache that grows and shrinks"));
    assert!(said(&outcome, "refused") > 0, "the allocator was not told first: {}", outcome.describe());
    assert!(said(&outcome, "streamed when full") > 0, "{}", outcome.describe());
    assert!(said(&outcome, "promotions") > 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "streamed_units"), 0, "not all came back: {}", outcome.describe());
    assert_eq!(said(&outcome, "demoted_bytes"), said(&outcome, "promoted_bytes"), "{}", outcome.describe());
    for line in ["ran short of memory", "has free memory again"] {
        assert_eq!(outcome.stderr.matches(line).count(), 1, "{line}: {}", outcome.describe());
    }
}

#[test]
fn without_a_shortage_nothing_is_streamed() {
    let outcome = told_right(on_a_gpu_of(256 << 20, "a cache that grows and shrinks"));
    assert_eq!(said(&outcome, "demotions"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "pages_in"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "refused"), 0, "{}", outcome.describe());
}

/// The mode by its name is the default without a budget.
#[test]
fn fit_mode_is_what_happens_without_a_budget() {
    made_room(short("a cache that grows and shrinks").option("FT_MODE", "fit"));
}

/// A budget is an upper limit: where the rest of the GPU runs short, weights take less.
#[test]
fn weights_take_less_than_their_budget_where_the_rest_of_the_gpu_runs_short() {
    let run = short("a cache that grows and shrinks").option("FT_MAX_GPU_MEM", "20MiB");
    let outcome = made_room(run);
    assert!(said(&outcome, "promotions") > 0, "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= 20 << 20, "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") > 12 << 20, "{}", outcome.describe());
}

#[test]
fn weights_make_room_inside_forwards() {
    made_room(short("a cache that grows inside forwards"));
}

#[test]
fn weights_make_room_while_other_threads_run_forwards() {
    for _ in 0..3 {
        told_right(short("a cache that grows under four threads"));
    }
}

#[test]
fn in_a_capture_what_does_not_fit_is_out_of_memory_and_the_capture_lives() {
    let outcome = told_right(short("a cache that grows while a graph is captured"));
    assert_eq!(said(&outcome, "grew in the capture"), 0, "{}", outcome.describe());
    assert!(said(&outcome, "demotions") > 0, "{}", outcome.describe());
    let line = "no weight can make room while a CUDA graph is captured";
    assert_eq!(outcome.stderr.matches(line).count(), 1, "{}", outcome.describe());
}

#[test]
fn weights_that_a_graph_reads_stay_and_others_make_room() {
    let outcome = told_right(short("a cache that grows beside a graph"));
    assert!(said(&outcome, "demotions") > 0, "{}", outcome.describe());
}

#[test]
fn weights_that_are_learnt_make_room_in_host_memory_and_are_streamed_from_then_on() {
    let outcome = made_room(short("a cache that grows while weights are learnt"));
    assert!(said(&outcome, "in the host") > 0, "{}", outcome.describe());
    assert!(said(&outcome, "pages_in") > 0, "{}", outcome.describe());
}

#[test]
fn what_a_forward_reads_through_pointers_stays_while_others_make_room() {
    let outcome = told_right(short("a cache that grows while pointers are read"));
    assert!(said(&outcome, "demotions") > 0, "{}", outcome.describe());
}

#[test]
fn shortages_that_come_again_and_again_leave_nothing_behind() {
    let outcome = made_room(short("a cache that comes and goes"));
    assert!(said(&outcome, "demotions") >= 6, "{}", outcome.describe());
    // The buffer that the link is measured with stays pinned.
    assert!(outcome.journal_number("/alive/registered_bytes") <= 32 << 20, "{}", outcome.describe());
    assert_eq!(said(&outcome, "weights_gpu_bytes"), MODEL, "{}", outcome.describe());
}

/// Each of these calls, of which there are so many behind a mark, fails once, or from then on: the program sees out-of-memory and everything is as it was, or it succeeded. Returns how
/// many moments were tried, and how often weights stayed where they were.
fn no_refused_call_costs_a_byte(run: impl Fn() -> Run, mark: &str, calls: &[(&str, u64)]) -> (usize, usize) {
    let (mut tried, mut refused) = (0, 0);
    for &(call, last) in calls {
        let mut moments = vec![1, last.div_ceil(2), last];
        moments.retain(|&moment| (1..=last).contains(&moment));
        moments.dedup();
        tried += moments.len();
        for moment in moments {
            for more in ["", "+"] {
                let fault = format!("{call}@{mark}.{moment}{more}=999");
                let run = run().sim("FAULTS", &fault).sim("STRICT", "0");
                let outcome = run.limit(Duration::from_secs(60)).start();
                survives(&outcome, &fault);
                refused += usize::from(outcome.status.success() && said(&outcome, "grew") == 0);
            }
        }
    }
    (tried, refused)
}

#[test]
fn no_refused_call_while_weights_make_room_is_a_wrong_byte_a_crash_or_a_hang() {
    let calls = [
        "cuMemGetInfo_v2",
        "cuCtxSynchronize",
        "cuStreamCreateWithPriority",
        "cuMemHostRegister_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuStreamSynchronize",
        "cuMemUnmap",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemRelease",
        "cuMemAddressReserve",
        "cuMemCreate",
    ];
    let whole = made_room(short("a cache that grows once"));
    assert_eq!(said(&whole, "grew"), 1, "{}", whole.describe());
    let calls = calls.map(|call| (call, said(&whole, call)));
    let (tried, refused) = no_refused_call_costs_a_byte(|| short("a cache that grows once"), "grow", &calls);
    assert!(tried > 12, "{tried} moments: {}", whole.describe());
    println!("{refused} of {tried} moments, each once and for good, kept weights where they were");
    assert!(refused > 0, "none of the refused calls kept weights where they were");
}

/// Weights of 256 MiB, some 60 pages of which stream when a block of 6 comes.
fn beside_many() -> Run {
    on_a_gpu_of(230 << 20, "a cache that grows beside many weights")
}

/// The block, from the third on, for which fewest pages were mapped, and how many.
fn cheapest_block(outcome: &Outcome) -> (u64, u64) {
    let mapped = |block: u64| (said(outcome, &format!("mapped for block {block}")), block);
    let (mapped, block) = (3..=8).map(mapped).min().unwrap_or_default();
    (block, mapped)
}

#[test]
fn little_memory_is_given_without_mapping_all_that_streams_anew() {
    let outcome = made_room(beside_many());
    let (_, mapped) = cheapest_block(&outcome);
    // Those of the block, as many of the ring for what streams now, and the fronts of these weights in their views.
    assert!(mapped <= 4 * 6, "{mapped} pages: {}", outcome.describe());
}

#[test]
fn no_refused_call_while_a_few_of_many_weights_make_room_is_a_wrong_byte_a_crash_or_a_hang() {
    let (block, mapped) = cheapest_block(&made_room(beside_many()));
    let calls = [("cuMemUnmap", 2), ("cuMemMap", mapped), ("cuMemSetAccess", 2)];
    let (tried, _) = no_refused_call_costs_a_byte(beside_many, &format!("grow {block}"), &calls);
    assert!(tried > calls.len(), "{tried} moments");
}

/// Blocks of all sizes come and go by chance, under three threads that run forwards. `FT_STEPS` makes it longer.
#[test]
fn growth_by_chance_costs_no_byte_and_leaves_nothing_behind() {
    let steps = std::env::var("FT_STEPS").unwrap_or_else(|_| "60".to_owned());
    let mut demotions = 0;
    for seed in 1..=4 {
        let run = short("random growth").args([seed.to_string(), steps.clone()]);
        let outcome = told_right(run.limit(Duration::from_secs(600)));
        demotions += said(&outcome, "demotions");
        assert_eq!(outcome.journal_number("/alive/handles"), 0, "seed {seed}: {}", outcome.describe());
        // What the link is measured with, and a piece through which weights may just be compared.
        assert!(outcome.journal_number("/alive/registered_bytes") <= 40 << 20, "seed {seed}");
        assert!(said(&outcome, "left on the GPU") < PAGE, "seed {seed}: {}", outcome.describe());
    }
    assert!(demotions > 4, "{demotions} demotions");
}

/// Under `gpu_limit` the same happens as on a GPU of that size, although the GPU has more.
mod limited {
    use super::*;

    fn limited(bytes: u64, name: &str) -> Run {
        on_a_gpu_of(256 << 20, name).option("FT_GPU_LIMIT", bytes.to_string())
    }

    /// What a context counts as on a GPU of 256 MiB.
    const CONTEXT: u64 = 4 << 20;

    #[test]
    fn weights_make_room_within_the_limit_and_come_back() {
        let outcome = made_room(limited(GPU + CONTEXT, "a cache that grows and shrinks"));
        assert!(said(&outcome, "device peak") <= GPU, "{}", outcome.describe());
        assert_eq!(said(&outcome, "streamed_units"), 0, "{}", outcome.describe());
    }

    #[test]
    fn memory_of_every_kind_counts_and_is_told_within_the_limit() {
        let limit = GPU + CONTEXT;
        let outcome = told_right(limited(limit, "memory of every kind"));
        assert_eq!(said(&outcome, "total"), limit, "{}", outcome.describe());
        assert!(said(&outcome, "free at first") <= GPU - MODEL, "{}", outcome.describe());
        assert!(said(&outcome, "rounds") > 20, "{}", outcome.describe());
        assert!(said(&outcome, "demotions") > 0, "{}", outcome.describe());
        assert!(said(&outcome, "device peak") <= GPU, "{}", outcome.describe());
        assert_eq!(said(&outcome, "failed"), 0, "{}", outcome.describe());
        assert_eq!(said(&outcome, "free again"), said(&outcome, "free at first"), "{}", outcome.describe());
    }

    #[test]
    fn a_model_larger_than_the_limit_is_built_and_run() {
        let outcome = told_right(limited(MODEL * 10 / 13 + CONTEXT, "built beyond the budget"));
        assert!(said(&outcome, "ran peak") <= MODEL * 10 / 13, "{}", outcome.describe());
        assert!(said(&outcome, "pages_in") > 0, "{}", outcome.describe());
    }

    #[test]
    fn growth_by_chance_stays_within_the_limit() {
        for seed in 5..=6 {
            let run = limited(GPU + CONTEXT, "random growth").args([seed.to_string(), "60".to_owned()]);
            let outcome = told_right(run.limit(Duration::from_secs(600)));
            assert!(said(&outcome, "device peak") <= GPU, "seed {seed}: {}", outcome.describe());
        }
    }
}
