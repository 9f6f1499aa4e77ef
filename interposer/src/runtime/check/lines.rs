//! Findings as lines: what happened, to which weight, by which kernel, and which rule of the page protocol says otherwise.

use std::collections::HashMap;

use flextensor_core::audit::Kind as Order;
use flextensor_core::audit::{Caller, Finding};
use flextensor_core::units::UnitId;

use crate::ffi::result::CudaError;

use super::callers::name_of;
use super::{Kind, found};

type Names = HashMap<UnitId, String>;

fn weight(names: &Names, unit: UnitId) -> String {
    names.get(&unit).cloned().unwrap_or_else(|| format!("weight {}", unit.0))
}

/// A line of an audit.
pub(super) fn of_an_audit(names: &Names, finding: &Finding) {
    found(finding.kind.key(), text_of(names, finding, name_of));
}

fn text_of(names: &Names, finding: &Finding, name_of: impl Fn(Caller) -> String) -> String {
    let unit = finding.unit.map_or_else(|| "a weight".to_owned(), |unit| weight(names, unit));
    let mut text = format!("{unit} {}", finding.kind.what());
    if let Some(by) = finding.by {
        let how = match finding.kind {
            Order::NotInPlace => "there is or was",
            _ => "what comes is",
        };
        text.push_str(&format!("; {how} {}", weight(names, by)));
    }
    if let Some(caller) = finding.caller {
        text.push_str(&format!("; used by {}", name_of(caller)));
    }
    text.push_str(&format!(" (rule {})", finding.kind.rule()));
    text
}

/// The context is lost, and one of these may have written a protected weight.
pub(super) fn of_a_fault(names: &Names, error: CudaError, suspects: &[(UnitId, Caller)]) {
    /// More do not help.
    const SHOWN: usize = 4;
    let each = suspects.iter().take(SHOWN);
    let list: Vec<String> =
        each.map(|&(unit, caller)| format!("{} on {}", name_of(caller), weight(names, unit))).collect();
    let who = match (list.is_empty(), suspects.len() > SHOWN) {
        (true, _) => "no launch that uses one was on its way".to_owned(),
        (false, true) => format!("first to blame: {}, and {} more", list.join(", "), suspects.len() - SHOWN),
        (false, false) => format!("first to blame: {}", list.join(", ")),
    };
    let text = format!(
        "the GPU refused an access (error {}) while weights that are only read were write-protected: a kernel that counts as a reader writes, or a kernel or copy \
         reaches beyond its memory; {who} (rule 8)",
        error.0.0
    );
    found(Kind::ProtectedWritten.key(), text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_which_weight_which_kernel_and_which_rule() {
        let names = Names::from([(UnitId(3), "layers.3.weight".to_owned())]);
        let finding = Finding {
            kind: Order::OverwrittenInUse,
            unit: Some(UnitId(3)),
            by: Some(UnitId(4)),
            caller: Some(Caller(0)),
        };
        assert_eq!(
            text_of(&names, &finding, |_| "kernel gemm".to_owned()),
            "layers.3.weight is overwritten on a copy stream that does not wait for all who use it; what comes is weight 4; used by kernel gemm (rule 3)"
        );
        let finding = Finding { kind: Order::UnrecordedWait, unit: None, by: None, caller: None };
        assert_eq!(
            text_of(&names, &finding, |_| String::new()),
            "a weight is ordered by an event that was never recorded (rule 10)"
        );
    }
}
