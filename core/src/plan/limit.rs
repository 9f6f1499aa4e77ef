//! How near to the bound any plan could come: the least time that the length of a ring and the order of uses
//! (`stretch`) allow. It is what plans are measured against where the bound itself cannot be reached; finding one
//! is `search`'s job.
//!
//! A ring of P pages makes a pass copy P pages more than the budget asks for. While a group of uses computes
//! with its H streamed pages held, the link can fill the other P - H pages at most; if the group computes
//! longer, the link idles. A short ring idles, a long one copies more: the best length is in between. Pages of
//! the ring that nothing else overwrites are not copied again: they count as resident, and not as ring.

use crate::error::CoreError;
use crate::plan::{PlanRequest, stretch};
use crate::simulate::{Course, Scenario};

/// See [`crate::plan::limits_ms`].
pub(super) fn limits_ms(request: &PlanRequest) -> Result<Vec<f64>, CoreError> {
    let course = Course::new(request)?;
    let over = super::search::over_budget(request);
    let least_ms = |scenario: &Scenario| {
        let ring_ms = Demand::new(request, scenario).least_ms();
        ring_ms.max(stretch::least_ms(request, scenario, over))
    };
    Ok(course.scenarios().iter().map(least_ms).collect())
}

/// What one scenario asks of a ring.
struct Demand {
    /// Pages by which the weights exceed the budget, without those that this scenario never reads.
    over: u64,
    pages_per_ms: f64,
    resident_ms: f64,
    /// Every group of uses: its streamable pages, and those that the link carries while its last use computes.
    groups: Vec<(u64, f64)>,
}

impl Demand {
    fn new(request: &PlanRequest, scenario: &Scenario) -> Self {
        let pages_per_ms = request.link.peak_bytes_per_ms() / request.page_bytes as f64;
        let pages =
            |at: usize| request.units.get(at).filter(|unit| unit.stay.is_none()).map_or(0, |unit| unit.pages);
        let mut used = vec![false; request.units.len()];
        let mut groups = Vec::new();
        for group in &scenario.groups {
            groups.push((group.units.iter().map(|&unit| pages(unit)).sum(), group.last_ms * pages_per_ms));
            for &unit in &group.units {
                if let Some(used) = used.get_mut(unit) {
                    *used = true;
                }
            }
        }
        let unused: u64 = (0..used.len()).filter(|&at| used.get(at) == Some(&false)).map(pages).sum();
        Demand {
            over: super::search::over_budget(request).saturating_sub(unused),
            pages_per_ms,
            resident_ms: scenario.resident_ms,
            groups,
        }
    }

    /// The least time over all lengths of the ring. Where no ring saves enough, the resident time: nothing
    /// better is known.
    fn least_ms(&self) -> f64 {
        if self.over == 0 {
            return self.resident_ms;
        }
        let most: u64 = self.groups.iter().map(|(pages, _)| *pages).sum();
        let mut least = f64::INFINITY;
        for ring in 0..=most {
            let copied = self.over + ring;
            // Longer rings can only copy more.
            if copied as f64 / self.pages_per_ms >= least {
                break;
            }
            let fits: u64 = self.groups.iter().map(|(pages, _)| (*pages).min(ring)).sum();
            if fits >= copied {
                least = least.min((copied as f64 + self.idle_pages(ring, copied)) / self.pages_per_ms);
            }
        }
        if least.is_finite() { least.max(self.resident_ms) } else { self.resident_ms }
    }

    /// Pages that the link could have carried while a ring of this length kept it waiting.
    fn idle_pages(&self, ring: u64, copied: u64) -> f64 {
        let (mut without_idling, mut idle) = (0.0, 0.0);
        for &(pages, lead) in &self.groups {
            let free = ring as f64 - lead;
            without_idling += free.clamp(0.0, pages as f64);
            idle += (-free).max(0.0);
        }
        idle + (copied as f64 - without_idling).max(0.0)
    }
}
