//! Lays the streamed pages of units around the ring in order of first use, and finds units that would collide
//! there. How many pages each unit streams is `plan`'s decision; when pages are free again is `simulate`'s.
//!
//! Because runs follow each other in order of use, the page that is needed next is always the one that was
//! released longest ago. At the end of a pass the ring stands somewhere; the next pass begins at its fixed
//! first page all the same. What lies between the two is lead that is lost once a pass, so the planner likes
//! rings that a pass goes around a whole number of times. Few pages that are missing to that are left free
//! all along the way, so that every lap loses next to nothing, instead of one lap all of them.

use crate::simulate::Course;

/// A run of one unit by its position in the request: `start` is 0 and `pages` is 0 for residents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) pages: u64,
}

impl Run {
    /// The one or two pieces of the ring it covers.
    pub(crate) fn pieces(self, ring_pages: u64) -> [std::ops::Range<usize>; 2] {
        let end = self.start + self.pages;
        if end <= ring_pages {
            [self.start as usize..end as usize, 0..0]
        } else {
            [self.start as usize..ring_pages as usize, 0..(end - ring_pages) as usize]
        }
    }

    /// Its chunks of at most `pages` pages, in order.
    pub(crate) fn parts(self, pages: u64, ring_pages: u64) -> impl Iterator<Item = Run> {
        (0..self.pages.div_ceil(pages)).map(move |chunk| Run {
            start: (self.start + chunk * pages) % ring_pages,
            pages: pages.min(self.pages - chunk * pages),
        })
    }
}

/// A pass that misses the end of its last lap by more than this part of its pages is laid without gaps.
const WIDEST_GAP: u64 = 32;

/// Lays all units that stream pages around the ring, from ring page `cursor` on. Every entry of `streamed` is
/// at most `ring_pages`.
pub(crate) fn lay_runs(course: &Course, streamed: &[u64], ring_pages: u64, cursor: u64) -> Vec<Run> {
    lay(course, streamed, ring_pages, cursor, &[])
}

/// As [`lay_runs`] from ring page 0 on, with the few pages that are missing to a whole number of laps left
/// free in front of groups of uses, evenly over the pass. `leaders`: the units that begin a group.
pub(crate) fn lay_laps(course: &Course, streamed: &[u64], ring_pages: u64, leaders: &[bool]) -> Vec<Run> {
    let all: u64 = streamed.iter().sum();
    let gap = if ring_pages == 0 { 0 } else { all.next_multiple_of(ring_pages) - all };
    let even = gap > 0 && gap <= all / WIDEST_GAP;
    lay(course, streamed, ring_pages, 0, if even { leaders } else { &[] })
}

fn lay(course: &Course, streamed: &[u64], ring_pages: u64, cursor: u64, leaders: &[bool]) -> Vec<Run> {
    let mut runs = vec![Run::default(); streamed.len()];
    if ring_pages == 0 {
        return runs;
    }
    let all: u64 = streamed.iter().sum();
    let gap = all.next_multiple_of(ring_pages) - all;
    let (mut laid, mut left_free) = (0, 0);
    for unit in course.ring_order() {
        let (Some(run), Some(&pages)) = (runs.get_mut(unit), streamed.get(unit)) else { continue };
        if pages > 0 {
            if leaders.get(unit).is_some_and(|leads| *leads) {
                // Both are below 2^32 pages.
                left_free = gap * laid / all;
            }
            *run = Run { start: (cursor + laid + left_free) % ring_pages, pages };
            laid += pages;
        }
    }
    runs
}

/// Pairs of different units that are held together and share ring pages; each unit appears once as the second
/// of a pair.
pub(crate) fn conflicts(course: &Course, runs: &[Run], ring_pages: u64) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    // Every page remembers the last group and unit that claimed it, so that no pair of units has to be
    // compared.
    let mut claims = vec![(u32::MAX, u32::MAX); ring_pages as usize];
    for (number, group) in (0..).zip(course.groups()) {
        for &unit in &group.units {
            for piece in runs.get(unit).copied().unwrap_or_default().pieces(ring_pages) {
                for claim in claims.get_mut(piece).unwrap_or_default() {
                    let (group, first) = (claim.0, claim.1 as usize);
                    if group == number && first != unit && found.iter().all(|(_, second)| *second != unit) {
                        found.push((first, unit));
                    }
                    *claim = (number, unit as u32);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PassProfile, PlanRequest, UnitInfo, UseInfo};
    use crate::units::{ModelId, UnitId};

    /// Ten units of ten pages, used one after the other.
    fn course() -> Course {
        let ids = (0..10).map(UnitId);
        let unit = |id| UnitInfo {
            id,
            name: String::new(),
            bytes: 10 * PlanRequest::PAGE_BYTES,
            pages: 10,
            splittable: true,
            stay: None,
        };
        let uses = ids.clone().map(|unit| UseInfo { unit, compute_ms: 1.0, owner: unit.0 }).collect();
        let pass =
            PassProfile { model: ModelId(1), shape: 0, uses, tail_ms: 0.0, resident_ms: 0.0, host_ms: 0.0 };
        let request =
            PlanRequest { units: ids.map(unit).collect(), passes: vec![pass], ..PlanRequest::default() };
        Course::new(&request).expect("the request is right")
    }

    /// Where runs begin, counted over all laps.
    fn starts(runs: &[Run], ring_pages: u64) -> Vec<u64> {
        let mut end = 0;
        let mut starts = Vec::new();
        for run in runs {
            let free = (run.start + ring_pages - end % ring_pages) % ring_pages;
            starts.push(end + free);
            end += free + run.pages;
        }
        starts
    }

    #[test]
    fn few_pages_that_are_missing_to_a_whole_lap_are_left_free_along_the_way() {
        let runs = lay_laps(&course(), &[10; 10], 34, &[true; 10]);
        assert_eq!(starts(&runs, 34), [0, 10, 20, 30, 40, 51, 61, 71, 81, 91]);
    }

    #[test]
    fn no_page_is_left_free_inside_a_group_or_where_many_are_missing() {
        let whole: Vec<u64> = (0..10).map(|at| at * 10).collect();
        assert_eq!(starts(&lay_laps(&course(), &[10; 10], 34, &[false; 10]), 34), whole);
        assert_eq!(starts(&lay_laps(&course(), &[10; 10], 30, &[true; 10]), 30), whole);
    }
}
