//! Two searches for the least cost over points of the unit cube, both seeded and reproducible: differential
//! evolution and simulated annealing. They know nothing of what the coordinates mean.

use oorandom::Rand64;

/// The seed where none is given: the same question always gets the same answer.
pub(super) const SEED: u64 = 42;
/// How far a mutant steps along a difference, at least and at most.
const STEP: (f64, f64) = (0.5, 1.0);
/// Part of the coordinates that a trial takes from its mutant.
const CROSSOVER: f64 = 0.7;
/// Annealing starts by accepting losses of this part of the first cost, and ends at this part of that.
const HEAT: (f64, f64) = (0.1, 1e-4);

/// How long and with what seed is searched.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// Points that are kept at once.
    pub(super) population: u32,
    /// Times that each of them is tried to be improved.
    pub(super) epochs: u32,
    /// Epochs without any improvement after which the search ends.
    pub(super) patience: u32,
    pub(super) seed: u64,
}

/// A point and its cost.
#[derive(Debug, Clone)]
struct Point {
    at: Vec<f64>,
    cost: f64,
}

impl Effort {
    /// Differential evolution: every point is tried against a mutant between itself, the best point and the
    /// difference of two others. `starts` are points to begin with; the rest is random.
    pub(super) fn evolve(
        &self,
        dimensions: usize,
        starts: Vec<Vec<f64>>,
        cost: impl Fn(&[f64]) -> f64,
    ) -> Vec<f64> {
        let mut random = Rand64::new(u128::from(self.seed));
        let size = (self.population as usize).max(4);
        let mut points: Vec<Point> =
            starts.into_iter().take(size).map(|at| Point { cost: cost(&at), at }).collect();
        while points.len() < size {
            // How many coordinates are high varies from point to point, so that few and many are both seen.
            let share = random.rand_float();
            let at: Vec<f64> = (0..dimensions)
                .map(|_| (random.rand_float() + if random.rand_float() < share { 1.0 } else { 0.0 }) / 2.0)
                .collect();
            points.push(Point { cost: cost(&at), at });
        }
        let mut best = least(&points);
        let mut idle = 0;
        for _ in 0..self.epochs {
            let before = best.cost;
            for target in 0..size {
                let Some(trial) = trial(&points, &best, target, &mut random) else { continue };
                let trial = Point { cost: cost(&trial), at: trial };
                if trial.cost < best.cost {
                    best = trial.clone();
                }
                if let Some(point) = points.get_mut(target).filter(|point| trial.cost <= point.cost) {
                    *point = trial;
                }
            }
            idle = if best.cost < before { 0 } else { idle + 1 };
            if idle >= self.patience {
                break;
            }
        }
        best.at
    }

    /// Simulated annealing from the best of `starts`: a few coordinates change at a time; losses are accepted
    /// less and less.
    pub(super) fn anneal(
        &self,
        dimensions: usize,
        starts: Vec<Vec<f64>>,
        cost: impl Fn(&[f64]) -> f64,
    ) -> Vec<f64> {
        let mut random = Rand64::new(u128::from(self.seed));
        let points: Vec<Point> = starts.into_iter().map(|at| Point { cost: cost(&at), at }).collect();
        let mut best = match points.as_slice() {
            [] => Point { cost: cost(&vec![0.0; dimensions]), at: vec![0.0; dimensions] },
            points => least(points),
        };
        if dimensions == 0 {
            return best.at;
        }
        let steps = self.epochs.saturating_mul(self.population.max(1));
        let mut now = best.clone();
        let hot = HEAT.0 * now.cost.abs().max(f64::MIN_POSITIVE);
        let mut idle = 0;
        for step in 0..steps {
            let heat = hot * HEAT.1.powf(f64::from(step) / f64::from(steps));
            let mut at = now.at.clone();
            for _ in 0..=random.rand_range(0..3) {
                let changed = random.rand_range(0..dimensions as u64) as usize;
                if let Some(slot) = at.get_mut(changed) {
                    *slot = random.rand_float();
                }
            }
            let next = Point { cost: cost(&at), at };
            idle += 1;
            if next.cost < best.cost {
                best = next.clone();
                idle = 0;
            }
            if next.cost <= now.cost || random.rand_float() < ((now.cost - next.cost) / heat).exp() {
                now = next;
            }
            if idle >= self.patience.saturating_mul(self.population.max(1)) {
                break;
            }
        }
        best.at
    }
}

fn least(points: &[Point]) -> Point {
    let least = points.iter().min_by(|a, b| a.cost.total_cmp(&b.cost));
    least.cloned().unwrap_or(Point { at: Vec::new(), cost: f64::INFINITY })
}

/// A mutant of one point, crossed with it.
fn trial(points: &[Point], best: &Point, target: usize, random: &mut Rand64) -> Option<Vec<f64>> {
    let count = points.len() as u64;
    let mut other = || loop {
        let other = random.rand_range(0..count) as usize;
        if other != target {
            return other;
        }
    };
    let (first, second) = (points.get(other())?, points.get(other())?);
    let point = points.get(target)?;
    let step = STEP.0 + (STEP.1 - STEP.0) * random.rand_float();
    let always = random.rand_range(0..point.at.len().max(1) as u64) as usize;
    let coordinates = point.at.iter().zip(&best.at).zip(first.at.iter().zip(&second.at)).enumerate();
    let trial = coordinates.map(|(at, ((&own, &best), (&first, &second)))| {
        if at != always && random.rand_float() >= CROSSOVER {
            return own;
        }
        let mutant = own + step * (best - own) + step * (first - second);
        // What leaves the cube comes back inside, or points would gather on its sides.
        if (0.0..=1.0).contains(&mutant) { mutant } else { random.rand_float() }
    });
    Some(trial.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFORT: Effort = Effort { population: 30, epochs: 200, patience: 50, seed: 7 };

    /// Distance from a point that no random start is near to.
    fn distance(at: &[f64]) -> f64 {
        at.iter().zip([0.1, 0.9, 0.3, 0.7]).map(|(a, b)| (a - b).powi(2)).sum()
    }

    #[test]
    fn evolution_finds_the_lowest_point_of_a_bowl() {
        let found = EFFORT.evolve(4, Vec::new(), distance);
        assert!(distance(&found) < 1e-6, "{found:?}");
    }

    #[test]
    fn annealing_comes_near_the_lowest_point_of_a_bowl() {
        let start = vec![0.9, 0.1, 0.9, 0.1];
        let found = EFFORT.anneal(4, vec![start.clone()], distance);
        assert!(distance(&found) < distance(&start) / 100.0, "{found:?}");
    }

    #[test]
    fn the_same_seed_finds_the_same_point_and_another_one_another() {
        // Stopped long before both reach the lowest point.
        let short = Effort { epochs: 5, ..EFFORT };
        let other = Effort { seed: 8, ..short };
        assert_eq!(short.evolve(4, Vec::new(), distance), short.evolve(4, Vec::new(), distance));
        assert_ne!(short.evolve(4, Vec::new(), distance), other.evolve(4, Vec::new(), distance));
        let start = || vec![vec![0.5; 4]];
        assert_eq!(EFFORT.anneal(4, start(), distance), EFFORT.anneal(4, start(), distance));
    }

    #[test]
    fn a_start_is_never_lost() {
        let perfect = vec![0.1, 0.9, 0.3, 0.7];
        assert_eq!(EFFORT.evolve(4, vec![perfect.clone()], distance), perfect);
        assert_eq!(EFFORT.anneal(4, vec![perfect.clone()], distance), perfect);
    }

    #[test]
    fn no_dimension_is_no_trouble() {
        assert!(EFFORT.evolve(0, Vec::new(), |_| 1.0).is_empty());
        assert!(EFFORT.anneal(0, Vec::new(), |_| 1.0).is_empty());
    }
}
