//! What a picture of times against GPU memory shows, in numbers: lines, marks, ranges, ticks. Drawing it is left
//! to [`crate::draw`]; where the numbers come from, to [`crate::sweep`] and [`crate::results`].

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// Through, without marks: computed values.
    Through,
    /// Through, with a mark at every point: measured or separately planned values.
    Marked,
    /// Dashed: a limit.
    Limit,
    /// Dotted: a reference that is no limit.
    Reference,
}

/// One line, with its text in the legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What it is called.
    pub label: String,
    /// How it is drawn.
    pub stroke: Stroke,
    /// (GiB, milliseconds), by ascending GiB.
    pub points: Vec<(f64, f64)>,
}

/// A vertical line at one place, with a text beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Upright {
    /// GiB.
    pub at: f64,
    /// The text.
    pub label: String,
}

/// How milliseconds are spread over the height.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Evenly, from 0.
    #[default]
    Even,
    /// By their logarithm, where the slowest would press all others to the floor.
    Logarithmic,
}

/// One picture: milliseconds against GiB.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chart {
    /// Its heading.
    pub title: String,
    /// What stands along the lower edge.
    pub along: String,
    /// What stands along the left edge.
    pub upward: String,
    /// How milliseconds are spread.
    pub scale: Scale,
    /// The lines, in the order of the legend.
    pub lines: Vec<Line>,
    /// The vertical lines.
    pub uprights: Vec<Upright>,
}

impl Chart {
    /// Where the edges lie: GiB from 0 and milliseconds from 0, each to a little above the largest value, so that
    /// nothing that is drawn touches the frame.
    #[must_use]
    pub fn ranges(&self) -> (f64, f64) {
        let points = || self.lines.iter().flat_map(|line| line.points.iter());
        let widest = points().map(|(x, _)| *x).chain(self.uprights.iter().map(|upright| upright.at));
        (above(widest), above(points().map(|(_, y)| *y)))
    }

    /// Where a logarithmic scale begins: just below the power of ten that is below all milliseconds, because the
    /// drawing library labels whole decades only.
    #[must_use]
    pub fn least_ms(&self) -> f64 {
        let points = self.lines.iter().flat_map(|line| line.points.iter());
        let least = points.map(|(_, y)| *y).filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
        if least.is_finite() { 10_f64.powf(least.log10().floor()) * 0.999 } else { 0.999 }
    }

    /// The chart with the scale on which the slowest time of every marked line and the bound can be read.
    #[must_use]
    pub fn scaled(mut self) -> Self {
        let most = |line: &Line| line.points.iter().map(|(_, y)| *y).fold(0.0, f64::max);
        let drawn = self.lines.iter().filter(|line| line.stroke != Stroke::Reference);
        let (least, most) = drawn
            .map(most)
            .filter(|ms| *ms > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(least, greatest), ms| (least.min(ms), greatest.max(ms)));
        self.scale = if most > least * STEEP { Scale::Logarithmic } else { Scale::Even };
        self
    }
}

/// Times of one line are this many times those of another: one of them could not be read on an even scale.
const STEEP: f64 = 6.0;

/// A little above the largest of the finite values; 1 when there is none above 0.
fn above(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
    if most > 0.0 { most * 1.06 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_drawn_lies_within_the_edges() {
        let chart = Chart {
            lines: vec![Line {
                label: "a".into(),
                stroke: Stroke::Through,
                points: vec![(1.0, 50.0), (4.0, 20.0)],
            }],
            uprights: vec![Upright { at: 9.0, label: "b".into() }],
            ..Chart::default()
        };
        let (x, y) = chart.ranges();
        assert!(x > 9.0 && x < 10.0 && y > 50.0 && y < 55.0, "{x} {y}");
    }

    #[test]
    fn a_line_far_above_the_others_makes_the_scale_logarithmic() {
        let line = |ms: f64| Line {
            label: "a".into(),
            stroke: Stroke::Marked,
            points: vec![(1.0, ms), (2.0, ms / 20.0)],
        };
        let chart = |lines| Chart { lines, ..Chart::default() }.scaled();
        assert_eq!(chart(vec![line(500.0), line(1500.0)]).scale, Scale::Even, "falling lines alone are none");
        let steep = chart(vec![line(500.0), line(3754.0)]);
        assert_eq!(steep.scale, Scale::Logarithmic);
        assert!((9.9..10.0).contains(&steep.least_ms()), "below 25 ms: {}", steep.least_ms());
        assert_eq!(chart(Vec::new()).scale, Scale::Even);
    }

    #[test]
    fn an_empty_chart_has_edges_too() {
        assert_eq!(Chart::default().ranges(), (1.0, 1.0));
    }
}
