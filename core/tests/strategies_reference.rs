//! Every strategy against the values that were observed of the library whose strategies they are: each of ours
//! must be valid where that one was, and no worse in (overhead, peak).
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics when something is missing, and may show its figures"
)]

mod models;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PlanRequest, plan};
use flextensor_core::strategy::{
    Estimate, Layer, Parameters, Question, Selection, Tensor, TransferCurve, Value, by_name,
};
use flextensor_core::units::{GIB, KIB, MIB, UnitId};
use models::{pass, unit};

/// Copies take 0.04 ms a MiB: 25 GiB/s, nearly.
const MS_PER_MIB: f64 = 0.04;
/// Overheads were noted with three or four digits.
const DIGITS: f64 = 6e-4;
/// Our simulation counts what the reference's estimate leaves out: the hand-over between streams at every wait.
const HAND_OVERS: f64 = 1.5e-3;

/// One case: layers of equal tensors.
struct Case {
    name: &'static str,
    /// Bytes of the tensors of every layer.
    tensors: Vec<u64>,
    durations: Vec<f64>,
    budget: Option<u64>,
    ms_per_mib: f64,
}

impl Case {
    /// Eight layers of two tensors of 32 MiB.
    fn eight(name: &'static str, ms: f64, budget_mib: Option<u64>) -> Case {
        let budget = budget_mib.map(|mib| mib * MIB);
        Case { name, tensors: vec![32 * MIB; 2], durations: vec![ms; 8], budget, ms_per_mib: MS_PER_MIB }
    }

    /// Six layers of five tensors, the last ones slower.
    fn h() -> Case {
        let tensors = vec![40 * MIB, 20 * MIB, 10 * MIB, 5 * MIB, 50 * KIB];
        let durations = vec![1.0, 1.5, 2.0, 2.5, 3.0, 3.5];
        Case { name: "H", tensors, durations, budget: None, ms_per_mib: MS_PER_MIB }
    }

    /// 80 layers of the 70B shape, 127.5 GiB, on a link of 56.25 GiB/s.
    fn seventy(ms: f64, budget_gib: Option<u64>) -> Case {
        let mib = [128, 16, 16, 128, 448, 448, 448];
        Case {
            name: "70B",
            tensors: mib.iter().map(|mib| mib * MIB).collect(),
            durations: vec![ms; 80],
            budget: budget_gib.map(|gib| gib * GIB),
            ms_per_mib: 1.0 / 57.6,
        }
    }

    fn question(&self) -> Question {
        let mut ids = (0..).map(UnitId);
        let layers = self.durations.iter().enumerate().map(|(at, duration_ms)| {
            let tensors = self.tensors.iter().enumerate().map(|(tensor, bytes)| Tensor {
                unit: ids.next().unwrap(),
                name: format!("layers.{at}.{tensor}"),
                bytes: *bytes,
            });
            Layer { label: format!("layers.{at}"), tensors: tensors.collect(), duration_ms: *duration_ms }
        });
        Question {
            layers: layers.collect(),
            fixed_bytes: 0,
            budget: self.budget,
            link: TransferCurve::flat(self.ms_per_mib),
        }
    }

    /// The same case for our own planner, which gets this budget. Every tensor is used alone, for its part of
    /// the layer's time.
    fn request(&self, budget: u64) -> PlanRequest {
        let layer_bytes: u64 = self.tensors.iter().sum();
        let (mut units, mut uses) = (Vec::new(), Vec::new());
        for ms in &self.durations {
            for bytes in &self.tensors {
                let id = units.len() as u32;
                let mut unit = unit(id, bytes / PlanRequest::PAGE_BYTES, true);
                unit.bytes = *bytes;
                units.push(unit);
                uses.push((id, ms * *bytes as f64 / layer_bytes as f64, id));
            }
        }
        PlanRequest {
            budget: Some(budget),
            units,
            passes: vec![pass(1, &uses, 0.0)],
            link: LinkCurve::flat(MIB as f64 / self.ms_per_mib / 1e6),
            ..PlanRequest::default()
        }
    }

    fn ask(&self, strategy: &str, parameters: &[(&str, i64)]) -> Selection {
        let parameters: Parameters =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), Value::Whole(*value))).collect();
        let found = by_name(strategy, &parameters).unwrap().select(&self.question()).unwrap();
        let Estimate { valid, overhead, peak_bytes, streamed_bytes } = found.estimate;
        println!(
            "{:>3} {strategy}: {} {:.1} MiB, overhead {overhead:.4}, streams {:.1} MiB by {}",
            self.name,
            if valid { "valid" } else { "not valid" },
            peak_bytes as f64 / MIB as f64,
            streamed_bytes as f64 / MIB as f64,
            found.solver,
        );
        found
    }

    /// Asserts that a strategy is valid and no worse than (overhead, MiB).
    fn expect(&self, strategy: &str, parameters: &[(&str, i64)], overhead: f64, mib: f64) -> Selection {
        let found = self.ask(strategy, parameters);
        assert!(found.estimate.valid, "{} {strategy}: {:?}", self.name, found.estimate);
        self.no_worse(
            strategy,
            (found.estimate.overhead, found.estimate.peak_bytes),
            DIGITS,
            (overhead, mib),
        );
        found
    }

    fn no_worse(&self, who: &str, (overhead, peak): (f64, u64), slack: f64, (most, mib): (f64, f64)) {
        let slack = slack * most.max(1.0);
        assert!(overhead <= most + slack, "{} {who}: overhead {overhead}, not {most}", self.name);
        if overhead > most - slack {
            let peak = peak as f64 / MIB as f64;
            // Peaks were noted in whole MiB or tenths of a GiB.
            assert!(peak <= mib * 1.002, "{} {who}: {peak} MiB, not {mib}", self.name);
        }
    }

    /// Asserts that our own planner, given what the best reference plan took, is no slower.
    fn ours_no_worse(&self, overhead: f64, mib: f64) {
        let made = plan(&self.request((mib * MIB as f64) as u64)).unwrap();
        let compute: f64 = self.durations.iter().sum();
        let ours = made.predicted_ms / compute - 1.0;
        println!(
            "{:>3} ours at {mib} MiB: overhead {ours:.4}, peak {} MiB",
            self.name,
            made.peak_bytes / MIB
        );
        assert_eq!(made.budget_missed(), None);
        self.no_worse("planner", (ours, made.peak_bytes), HAND_OVERS, (overhead, mib));
    }
}

const FOUR: &[(&str, i64)] = &[("n_blocks", 4)];
const TWO_TO_FOUR: &[(&str, i64)] = &[("min_blocks", 2), ("max_blocks", 4)];
const LEAST_TWO: &[(&str, i64)] = &[("min_blocks", 2)];
const LEAST_FOUR: &[(&str, i64)] = &[("min_blocks", 4)];

/// The strategies that need a budget.
const BUDGET_FILLS: [&str; 4] = [
    "BudgetFillStrategy",
    "BudgetFillGreedyStrategy",
    "BudgetFillLayerDEStrategy",
    "BudgetFillTensorDEStrategy",
];

#[test]
fn case_a_slow_layers_and_no_budget() {
    let case = Case::eight("A", 3.0, None);
    case.expect("KnapsackBlockStrategy", &[], 0.0, 320.0);
    case.expect("GlobalOffloadStrategy", TWO_TO_FOUR, 0.0, 192.0);
    case.expect("AdaptiveStrategy", LEAST_TWO, 0.0, 192.0);
    case.expect("AdaptiveStrategy", LEAST_FOUR, 0.0, 320.0);
    case.ours_no_worse(0.0, 192.0);
    for name in BUDGET_FILLS {
        let refused = by_name(name, &Parameters::new()).unwrap().select(&case.question()).unwrap_err();
        assert!(refused.to_string().contains("none is set"), "{refused}");
    }
}

#[test]
fn case_c_layers_too_fast_to_hide_anything() {
    let case = Case::eight("C", 0.5, None);
    for (name, parameters) in [
        ("KnapsackBlockStrategy", FOUR),
        ("GlobalOffloadStrategy", TWO_TO_FOUR),
        ("AdaptiveStrategy", LEAST_TWO),
    ] {
        let found = case.expect(name, parameters, 0.0, 512.0);
        assert_eq!(found.estimate.streamed_bytes, 0);
        assert_eq!(found.blocks.total_bytes(), 0, "nothing streams, so no block is needed");
    }
    case.ours_no_worse(0.0, 512.0);
}

#[test]
fn case_d_a_budget_of_half() {
    let case = Case::eight("D", 1.0, Some(256));
    case.expect("GlobalOffloadStrategy", TWO_TO_FOUR, 1.365, 192.0);
    case.expect("AdaptiveStrategy", LEAST_TWO, 1.17, 256.0);
    case.ours_no_worse(1.17, 256.0);
    // Four blocks cannot meet it: the best effort was 320 MiB.
    for (name, parameters) in
        [("KnapsackBlockStrategy", FOUR), ("BudgetFillStrategy", FOUR), ("AdaptiveStrategy", LEAST_FOUR)]
    {
        let found = case.ask(name, parameters);
        assert!(
            found.estimate.valid || found.estimate.peak_bytes <= 320 * MIB,
            "{name}: {:?}",
            found.estimate
        );
    }
}

#[test]
fn case_e_a_budget_of_three_quarters() {
    let case = Case::eight("E", 1.5, Some(384));
    case.expect("KnapsackBlockStrategy", FOUR, 0.618, 320.0);
    case.expect("GlobalOffloadStrategy", TWO_TO_FOUR, 0.0, 352.0);
    for name in BUDGET_FILLS {
        case.expect(name, FOUR, 0.177, 384.0);
    }
    case.expect("AdaptiveStrategy", LEAST_TWO, 0.0, 352.0);
    case.ours_no_worse(0.0, 352.0);
}

#[test]
fn case_f_a_budget_that_holds_everything() {
    let case = Case::eight("F", 1.0, Some(1024));
    for (name, parameters) in [
        ("KnapsackBlockStrategy", FOUR),
        ("GlobalOffloadStrategy", TWO_TO_FOUR),
        ("BudgetFillStrategy", FOUR),
        ("AdaptiveStrategy", LEAST_TWO),
    ] {
        let found = case.expect(name, parameters, 0.0, 512.0);
        assert_eq!(found.estimate.streamed_bytes, 0, "{name}");
    }
    case.ours_no_worse(0.0, 512.0);
}

#[test]
fn case_g_a_budget_that_blocks_of_whole_layers_cannot_meet() {
    let case = Case::eight("G", 1.0, Some(64));
    for (name, parameters, mib) in [
        ("KnapsackBlockStrategy", FOUR, 320),
        ("GlobalOffloadStrategy", TWO_TO_FOUR, 192),
        ("BudgetFillStrategy", FOUR, 320),
        ("AdaptiveStrategy", LEAST_TWO, 192),
    ] {
        let found = case.ask(name, parameters);
        assert!(!found.estimate.valid, "{name}");
        assert!(found.estimate.peak_bytes <= mib * MIB, "{name}: {:?}", found.estimate);
    }
    case.ours_no_worse(1.365, 192.0);
    // Ours does meet the budget itself.
    let made = plan(&case.request(64 * MIB)).unwrap();
    assert_eq!(made.budget_missed(), None);
}

#[test]
fn case_h_layers_of_several_sizes_that_slow_down() {
    let case = Case::h();
    case.expect("KnapsackBlockStrategy", &[], 0.0, 425.3);
    case.expect("GlobalOffloadStrategy", TWO_TO_FOUR, 0.0, 345.3);
    case.expect("AdaptiveStrategy", LEAST_TWO, 0.0, 345.3);
    case.ours_no_worse(0.0, 345.3);
}

#[test]
fn seventy_billion_parameters_at_every_reference_budget() {
    for (ms, budget, overhead, gib) in [
        (0.5, Some(96), 14.4, 94.7),
        (0.5, Some(64), 29.7, 63.9),
        (0.5, Some(40), 40.3, 39.8),
        (20.0, None, 0.0, 43.1),
        (20.0, Some(64), 0.0, 43.1),
        (20.0, Some(20), 0.27, 19.7),
        (40.0, Some(64), 0.0, 8.0),
    ] {
        let case = Case::seventy(ms, budget);
        case.expect("AdaptiveStrategy", LEAST_TWO, overhead, gib * 1024.0);
        case.ours_no_worse(overhead, gib * 1024.0);
    }
}

#[test]
fn streaming_less_where_time_is_equal_is_what_ours_does_better() {
    // The reference streamed 88.9 GiB a pass here, although a budget of 64 GiB asks for 63.5 and the ring.
    let made = plan(&Case::seventy(20.0, None).request(64 * GIB)).unwrap();
    let gib = made.streamed_bytes as f64 / GIB as f64;
    assert!(made.predicted_ms <= 1600.0 * 1.005, "{}", made.predicted_ms);
    assert!(gib <= 66.0, "{gib} GiB");
}
