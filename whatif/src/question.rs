//! A question: a profile, and the budget and link that are asked about. Texts of the command line become values
//! here; answering is [`crate::answer`]'s.

use flextensor_config::size::{Amount, parse_bytes};
use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{Objective, PlanRequest, plan};
use flextensor_core::units::Bytes;

use crate::error::WhatIfError;
use crate::profile::Shape;

/// Budgets that are understood when the profile does not say how large its GPU was.
const BYTES: &str =
    "bytes above 0 as 8GiB, 24 GB or 1048576 (a percentage needs a profile that names the memory of its GPU)";
/// Budgets that are understood when it does.
const BYTES_OR_PERCENT: &str =
    "bytes above 0 as 8GiB, 24 GB or 1048576, or a percentage of the GPU's memory as 60%";

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// What is planned: the profile under this budget and link.
    pub request: PlanRequest,
    /// What people call the model or models.
    pub title: String,
    /// The UUID of the GPU that was measured on, if it is known.
    pub gpu: Option<String>,
    /// Bytes of its memory, if they are known: what a percentage is of.
    pub gpu_bytes: Option<u64>,
    /// Where the link's speed comes from, as a few words.
    pub link_words: String,
    /// The input shapes of the profile.
    pub shapes: Vec<Shape>,
}

impl Question {
    /// The same question under another budget: `text` as the options take it; a percentage is of the GPU's memory.
    ///
    /// # Errors
    /// [`WhatIfError::BadBudget`].
    pub fn with_budget(mut self, text: &str) -> Result<Self, WhatIfError> {
        let gpu_bytes = self.gpu_bytes;
        let allowed = if gpu_bytes.is_some() { BYTES_OR_PERCENT } else { BYTES };
        let refuse = || WhatIfError::BadBudget { given: text.to_owned(), allowed };
        let budget = match Amount::parse(text).ok_or_else(refuse)? {
            Amount::Bytes(bytes) => bytes,
            percent @ Amount::Percent(_) => percent.of(gpu_bytes.ok_or_else(refuse)?),
        };
        self.request.budget = Some(budget);
        Ok(self)
    }

    /// The same question for latency mode: as little GPU memory as costs next to no time, whatever the budget.
    #[must_use]
    pub fn for_least_memory(mut self) -> Self {
        self.request.objective = Objective::LATENCY;
        self
    }

    /// What stands above a picture.
    #[must_use]
    pub fn heading(&self) -> String {
        let weights = Bytes(self.request.total_bytes());
        let link = self.request.link.peak_bytes_per_ms() / 1e6;
        format!("{}, {weights} of weights, link {link:.1} GB/s", self.title)
    }

    /// Milliseconds of one pass of every model with everything resident.
    ///
    /// # Errors
    /// [`WhatIfError::Core`] when the request contradicts itself.
    pub fn resident_ms(&self) -> Result<f64, WhatIfError> {
        // Where the budget holds all weights, nothing but computing is left in the bound.
        let budget = Some(self.request.total_bytes());
        let roomy = PlanRequest { budget, objective: Objective::LeastTime, ..self.request.clone() };
        Ok(plan(&roomy)?.bound_ms)
    }

    /// The same question for a link of one speed, as `25GB/s`.
    ///
    /// # Errors
    /// [`WhatIfError::BadLink`].
    pub fn with_link(mut self, text: &str) -> Result<Self, WhatIfError> {
        let bytes = link_speed(text).ok_or_else(|| WhatIfError::BadLink { given: text.to_owned() })?;
        self.request.link = LinkCurve::flat(bytes as f64 / 1e9);
        self.link_words = "as asked".into();
        Ok(self)
    }
}

/// Bytes a second of a text such as `25GB/s`; a unit is needed.
fn link_speed(text: &str) -> Option<u64> {
    let amount = text.trim().strip_suffix("/s")?.trim_end();
    amount.ends_with(['b', 'B']).then(|| parse_bytes(amount)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn question() -> Question {
        Question {
            request: PlanRequest::default(),
            title: "net".into(),
            gpu: None,
            gpu_bytes: None,
            link_words: "measured".into(),
            shapes: Vec::new(),
        }
    }

    fn budget(text: &str, gpu_bytes: Option<u64>) -> Result<Option<u64>, WhatIfError> {
        Question { gpu_bytes, ..question() }.with_budget(text).map(|question| question.request.budget)
    }

    #[test]
    fn a_budget_is_read_as_the_options_read_it() {
        assert_eq!(budget("8GiB", None), Ok(Some(8 * GIB)));
        assert_eq!(budget("50%", Some(80 * GIB)), Ok(Some(40 * GIB)));
    }

    #[test]
    fn a_budget_that_is_none_is_refused_with_what_is_allowed() {
        for (text, gpu_bytes) in
            [("lots", Some(GIB)), ("8G", None), ("0", None), ("-1GiB", None), ("101%", Some(GIB))]
        {
            let message = budget(text, gpu_bytes).expect_err(text).to_string();
            assert!(message.contains(&format!("`{text}`")) && message.contains("8GiB"), "{message}");
        }
    }

    #[test]
    fn a_percentage_without_a_gpu_to_be_a_part_of_is_refused() {
        let message = budget("60%", None).expect_err("of what?").to_string();
        assert!(message.contains("`60%`") && message.contains("memory of its GPU"), "{message}");
    }

    #[test]
    fn a_link_is_a_speed_with_a_unit() {
        for (text, gb_per_s) in
            [("25GB/s", 25.0), (" 55.4 gb/s ", 55.4), ("900MiB/s", 0.943_718_4), ("1TB/s", 1000.0)]
        {
            let link = question().with_link(text).expect(text).request.link;
            assert!((link.gb_per_s(1 << 20) - gb_per_s).abs() < 1e-9, "{text}: {link:?}");
        }
        for text in ["25", "25/s", "25GB", "0GB/s", "-3GB/s", "fast", "", "GB/s", "25 Gbit/s", "nanGB/s"] {
            let message = question().with_link(text).expect_err(text).to_string();
            assert!(message.contains(&format!("`{text}`")), "{message}");
        }
    }
}
