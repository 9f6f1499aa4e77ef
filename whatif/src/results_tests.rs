//! Which numbers of the benchmark's lines are drawn.

use super::*;
use crate::chart::Scale;

const LINES: &str = r#"
{"case": "prefill", "mode": "native", "budget_bytes": null, "weights_bytes": 2147483648, "weights_gpu_bytes": 2147483648, "ms": 10.0, "native_ms": 10.0, "link_bytes_per_s": 21474836480.0}
{"case": "prefill", "mode": "off", "budget_bytes": null, "weights_bytes": 2147483648, "weights_gpu_bytes": null, "ms": 10.1}
{"case": "prefill", "mode": "accelerate", "weights_gpu_bytes": 536870912, "ms": 300.0}
{"case": "prefill", "mode": "flextensor", "budget_bytes": 1610612736, "weights_gpu_bytes": 1610612736, "ms": 25.5}
{"case": "prefill", "mode": "flextensor", "budget_bytes": 1073741824, "weights_gpu_bytes": 1073741824, "ms": 51.0}
{"case": "decode", "mode": "flextensor", "budget_bytes": 1073741824, "ms": 52.0}
{"case": "decode", "mode": "flextensor", "budget_bytes": 536870912, "ms": null}
"#;

/// The charts of one file.
fn of(text: &str, case: Option<&str>) -> Result<Vec<Chart>, WhatIfError> {
    charts(&[("a.jsonl".to_owned(), text.to_owned())], case)
}

/// The numbers of a chart, a line each.
fn numbers(chart: &Chart) -> String {
    let line = |line: &Line| {
        let ends = line.points.first().into_iter().chain(line.points.last());
        let ends: Vec<_> = ends.map(|(x, y)| format!("({x:.3}, {y:.2})")).collect();
        format!("{} {:?} {} points: {}", line.label, line.stroke, line.points.len(), ends.join(" "))
    };
    let lines: Vec<_> = chart.lines.iter().map(line).collect();
    format!("{}\n{}", chart.title, lines.join("\n"))
}

#[test]
fn each_case_is_a_chart_of_modes_with_the_bound() {
    let charts = of(LINES, None).expect("good lines");
    let text: Vec<_> = charts.iter().map(numbers).collect();
    insta::assert_snapshot!(text.join("\n\n"), @"
    prefill
    flextensor Marked 2 points: (1.000, 51.00) (1.500, 25.50)
    accelerate Marked 1 points: (0.500, 300.00) (0.500, 300.00)
    bound Limit 65 points: (0.000, 100.00) (2.000, 10.00)
    native Reference 2 points: (0.000, 10.00) (2.000, 10.00)

    decode
    flextensor Marked 1 points: (1.000, 52.00) (1.000, 52.00)
    ");
}

#[test]
fn runs_of_several_files_stand_in_one_chart() {
    let other = r#"{"case": "prefill", "mode": "flextensor", "weights_gpu_bytes": 536870912, "ms": 77.0}"#;
    let files = [("a".to_owned(), LINES.to_owned()), ("b".to_owned(), other.to_owned())];
    let charts = charts(&files, Some("prefill")).expect("good lines");
    assert_eq!(charts[0].lines[0].points.first(), Some(&(0.5, 77.0)));
}

#[test]
fn one_case_can_be_chosen_and_an_unknown_one_is_named_with_those_there_are() {
    assert_eq!(of(LINES, Some("decode")).expect("is there").len(), 1);
    let message = of(LINES, Some("train")).expect_err("is not").to_string();
    assert!(message.contains("`train`") && message.contains("prefill, decode"), "{message}");
}

#[test]
fn a_line_that_is_none_is_named_by_its_number() {
    for (line, words) in [
        ("{", "EOF"),
        ("[]", "Measured"),
        (r#"{"mode": "x", "ms": 1}"#, "case"),
        (r#"{"case": "a", "mode": "b", "ms": "fast"}"#, "fast"),
    ] {
        let message = of(&format!("{}\n{line}", LINES.trim()), None).expect_err(line).to_string();
        assert!(message.contains("line 8 of `a.jsonl`") && message.contains(words), "{message}");
    }
}

#[test]
fn a_file_without_any_run_is_said_to_be_so() {
    assert!(matches!(of("", None), Err(WhatIfError::Nothing)));
    let failed = r#"{"case": "a", "mode": "flextensor", "ms": null}"#;
    assert!(matches!(of(failed, None), Err(WhatIfError::Nothing)));
}

#[test]
fn a_mode_far_slower_than_the_bound_is_drawn_on_a_logarithmic_scale_and_says_so() {
    let slow = r#"{"case": "prefill", "mode": "accelerate", "weights_gpu_bytes": 536870912, "ms": 3754.0}"#;
    let charts = of(&format!("{LINES}{slow}"), Some("prefill")).expect("good lines");
    assert_eq!(charts[0].scale, Scale::Logarithmic);
    let drawn = crate::draw::charts(&charts).expect("drawn");
    assert!(drawn.contains("logarithmic"));
    let even = of(LINES, Some("decode")).expect("good lines");
    assert!(!crate::draw::charts(&even).expect("drawn").contains("logarithmic"));
}
