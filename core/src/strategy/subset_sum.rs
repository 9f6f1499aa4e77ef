//! The largest part of a set of sizes that still fits: the knapsack whose items are worth what they weigh.

/// Steps after which the best part found so far is taken. Sizes of one layer are few and mostly equal, so that
/// the search ends long before.
const MOST_STEPS: u32 = 20_000;

/// Positions of the sizes whose sum comes nearest to `capacity` from below, ascending. Exact unless more than
/// [`MOST_STEPS`] combinations have to be looked at.
pub(super) fn fill(sizes: &[u64], capacity: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(sizes.get(at)), at));
    let size = |at: &usize| sizes.get(*at).copied().unwrap_or(0);
    // Equal sizes are one class: how many of them are taken matters, not which.
    let classes: Vec<Class> = order
        .chunk_by(|a, b| size(a) == size(b))
        .map(|class| Class { size: class.first().map_or(0, size), count: class.len() as u64 })
        .collect();
    let mut search =
        Search { classes: &classes, taken: Vec::new(), sum: 0, best: Vec::new(), best_sum: 0, steps: 0 };
    let rest = classes.iter().map(|class| class.size * class.count).sum();
    search.descend(capacity, rest);
    let taken = search.best;
    let mut positions: Vec<usize> = order
        .chunk_by(|a, b| size(a) == size(b))
        .zip(taken)
        .flat_map(|(class, count)| class.iter().copied().take(count as usize))
        .collect();
    positions.sort_unstable();
    positions
}

#[derive(Debug, Clone, Copy)]
struct Class {
    size: u64,
    count: u64,
}

#[derive(Debug)]
struct Search<'a> {
    classes: &'a [Class],
    /// How many of each class are taken, up to the class that is looked at.
    taken: Vec<u64>,
    sum: u64,
    best: Vec<u64>,
    best_sum: u64,
    steps: u32,
}

impl Search<'_> {
    /// Tries the classes from the next one on; `rest` is the sum of all that is left. Returns whether the
    /// search is over.
    fn descend(&mut self, capacity: u64, rest: u64) -> bool {
        if self.sum > self.best_sum {
            self.best.clone_from(&self.taken);
            self.best_sum = self.sum;
        }
        self.steps += 1;
        if self.best_sum == capacity || self.steps >= MOST_STEPS {
            return true;
        }
        let Some(&class) = self.classes.get(self.taken.len()) else { return false };
        if self.sum + rest <= self.best_sum {
            return false;
        }
        let rest = rest - class.size * class.count;
        let most = class.count.min((capacity - self.sum).checked_div(class.size).unwrap_or(class.count));
        for count in (0..=most).rev() {
            self.taken.push(count);
            self.sum += count * class.size;
            let over = self.descend(capacity, rest);
            self.sum -= count * class.size;
            self.taken.pop();
            if over {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_smaller_item_is_passed_over_where_that_fills_better() {
        assert_eq!(fill(&[40, 20, 10, 5], 37), [1, 2, 3]);
        assert_eq!(fill(&[6, 5, 5], 10), [1, 2]);
        assert_eq!(fill(&[7; 300], 70), (0..10).collect::<Vec<_>>());
        assert_eq!(fill(&[7, 8], 6), [0usize; 0]);
        assert_eq!(fill(&[], 6), [0usize; 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        #[test]
        fn no_other_part_fills_more(sizes in prop::collection::vec(1..50u64, 0..11), capacity in 0..200u64) {
            let sum = |positions: &mut dyn Iterator<Item = usize>| positions.map(|at| sizes[at]).sum::<u64>();
            let every = (0u32..1 << sizes.len()).map(|bits| sum(&mut (0..sizes.len()).filter(|at| bits >> at & 1 == 1)));
            let best = every.filter(|sum| *sum <= capacity).max().unwrap_or(0);
            prop_assert_eq!(sum(&mut fill(&sizes, capacity).into_iter()), best);
        }
    }
}
