//! The plan in force, with as little changed as another budget needs: the ring stays, and with it every run that does not have to change, so that few pages are
//! mapped anew. Which units stream less is `fewer`'s matter, which stream more `more`'s; what a plan from scratch is like is `search`'s. Which of the two is worth its
//! change is for whoever moves the pages.

mod fewer;
mod more;

use std::cmp::Ordering;

use crate::error::CoreError;
use crate::layout::{self, Run};
use crate::plan::assemble::{self, Choice};
use crate::plan::judge::pick;
use crate::plan::search::{Search, over_budget, total};
use crate::plan::{Plan, PlanRequest};
use crate::simulate::Course;

/// See [`crate::plan::amended`].
pub(super) fn plan(standing: &Plan, request: &PlanRequest) -> Result<Option<Plan>, CoreError> {
    let course = Course::new(request)?;
    let Some(start) = as_it_stands(standing, request, &course) else { return Ok(None) };
    let over = over_budget(request);
    // Where nothing is over the budget the ring itself has to go.
    if over == 0 {
        return Ok(None);
    }
    let (streamed, needed) = (total(&start.streamed), over + start.ring_pages);
    let search = Search::new(request, &course, None);
    let found = match streamed.cmp(&needed) {
        Ordering::Greater => search.fewer(&start, streamed - needed),
        Ordering::Less => search.more(&start, needed - streamed),
        Ordering::Equal => Vec::new(),
    };
    Ok(pick(found).map(|choice| assemble::plan(request, &course, choice)))
}

/// The standing plan by positions of units; none where it is not one for this request, streams what has to stay, or what cannot be in the ring together any more.
fn as_it_stands(standing: &Plan, request: &PlanRequest, course: &Course) -> Option<Choice> {
    let ring_pages = standing.ring_pages;
    let mut choice = Choice { ring_pages, ..Choice::resident(request, course) };
    if standing.chunk_pages > 0 {
        choice.chunk_pages = standing.chunk_pages;
    }
    for run in &standing.layout {
        let at = course.position(run.unit)?;
        let unit = request.units.get(at).filter(|unit| unit.stay.is_none())?;
        let is_part = run.pages < unit.pages && !unit.splittable;
        if is_part || run.pages > unit.pages.min(ring_pages) || run.start >= ring_pages {
            return None;
        }
        *choice.streamed.get_mut(at)? = run.pages;
        *choice.runs.get_mut(at)? = Run { start: run.start, pages: run.pages };
    }
    // What is held together by now may collide: no plan on these runs could be followed.
    let runs = ring_pages > 0 && !standing.layout.is_empty();
    (runs && layout::conflicts(course, &choice.runs, ring_pages).is_empty()).then_some(choice)
}

/// The run with so many pages instead, on the same last page of the ring: a tail grows and shrinks at its front.
fn resized(run: Run, pages: u64, ring_pages: u64) -> Run {
    match pages {
        0 => Run::default(),
        _ => Run { start: (run.start + run.pages + ring_pages - pages) % ring_pages, pages },
    }
}
