//! The list of facts: what was observed beside what is expected, printed as it is found.

/// Collects and prints facts.
pub(crate) struct Facts {
    selection: Option<String>,
    different: usize,
}

impl Facts {
    /// All facts, or those whose name contains a text.
    pub(crate) fn selected_by(selection: Option<String>) -> Self {
        Self { selection, different: 0 }
    }

    /// States one fact.
    #[expect(clippy::print_stdout, reason = "the output is the result")]
    pub(crate) fn state(&mut self, name: &str, observed: u64, expected: u64) {
        if self.selection.as_ref().is_some_and(|wanted| !name.contains(wanted.as_str())) {
            return;
        }
        if observed == expected {
            println!("same {name}: {observed}");
        } else {
            println!("differs {name}: {observed}, expected {expected}");
            self.different += 1;
        }
    }

    /// States the code of a driver call.
    pub(crate) fn code(&mut self, name: &str, observed: u32, expected: u32) {
        self.state(name, u64::from(observed), u64::from(expected));
    }

    /// States that something holds.
    pub(crate) fn holds(&mut self, name: &str, observed: bool) {
        self.state(name, u64::from(observed), 1);
    }

    /// Whether any fact was not as expected.
    pub(crate) fn differ(&self) -> bool {
        self.different > 0
    }
}
