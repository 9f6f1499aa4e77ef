//! The interpolator: how long a copy of any size takes, from a few measured sizes, and back.
//! Between and beyond the points it follows straight lines over the logarithms of both.

use serde::{Deserialize, Serialize};

use crate::link::LinkCurve;
use crate::units::MIB;

/// Sizes beyond any memory: points above it say nothing.
const MOST_BYTES: u64 = 1 << 60;

/// Copy times by size. A single point stands for its speed at every size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, f64)>", into = "Vec<(u64, f64)>")]
pub struct TransferCurve {
    /// Bytes and milliseconds, both above 0 and both rising; at least two.
    points: Vec<(u64, f64)>,
}

impl From<Vec<(u64, f64)>> for TransferCurve {
    fn from(points: Vec<(u64, f64)>) -> Self {
        TransferCurve::new(points)
    }
}

impl From<TransferCurve> for Vec<(u64, f64)> {
    fn from(curve: TransferCurve) -> Self {
        curve.points
    }
}

impl Default for TransferCurve {
    /// The default link, in copies of 16 MiB.
    fn default() -> Self {
        TransferCurve::of_link(&LinkCurve::default(), 16 * MIB)
    }
}

impl TransferCurve {
    /// A curve through these points (bytes, milliseconds), in any order. Points that say nothing (not above 0,
    /// not a number) are left out, and so are those at which a larger copy took no longer than a smaller one;
    /// if none is left, the default curve is taken.
    #[must_use]
    pub fn new(mut points: Vec<(u64, f64)>) -> Self {
        points.retain(|(bytes, ms)| (1..=2 * MOST_BYTES).contains(bytes) && ms.is_finite() && *ms > 0.0);
        points.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut rising: Vec<(u64, f64)> = Vec::with_capacity(points.len());
        for point in points {
            if rising.last().is_none_or(|last| point.0 > last.0 && point.1 > last.1) {
                rising.push(point);
            }
        }
        match rising.as_slice() {
            [] => return TransferCurve::default(),
            &[(bytes, ms)] => rising.push((bytes * 2, ms * 2.0)),
            _ => {}
        }
        TransferCurve { points: rising }
    }

    /// A link of one speed for every size.
    #[must_use]
    pub fn flat(ms_per_mib: f64) -> Self {
        TransferCurve::new(vec![(MIB, ms_per_mib)])
    }

    /// The curve of a link that copies in chunks of this many bytes.
    #[must_use]
    pub fn of_link(link: &LinkCurve, chunk_bytes: u64) -> Self {
        let chunk = chunk_bytes.clamp(1, MOST_BYTES);
        let below = link.points().iter().map(|point| point.copy_bytes).filter(|bytes| *bytes < chunk);
        let mut points: Vec<(u64, f64)> = below.map(|bytes| (bytes, link.copy_ms(bytes))).collect();
        let ms = link.copy_ms(chunk);
        // Beyond a chunk time is proportional to size: two points with the slope of one chunk.
        points.extend([(chunk, ms), (chunk * 2, ms * 2.0)]);
        TransferCurve::new(points)
    }

    /// Milliseconds of one copy of this many bytes.
    #[must_use]
    pub fn ms(&self, bytes: u64) -> f64 {
        if bytes == 0 {
            return 0.0;
        }
        let at = self.points.partition_point(|point| point.0 < bytes);
        let [low, high] = self.segment(at);
        line(bytes as f64, low, high)
    }

    /// Bytes of the largest copy that takes at most this long.
    #[must_use]
    pub fn bytes_within(&self, ms: f64) -> u64 {
        if ms.is_nan() || ms <= 0.0 {
            return 0;
        }
        let at = self.points.partition_point(|point| point.1 < ms);
        let [low, high] = self.segment(at);
        let bytes = line(ms, (low.1, low.0), (high.1, high.0));
        // A time that was computed from a size must give that size back.
        let nearest = bytes.round();
        if (nearest - bytes).abs() <= bytes * 1e-9 { nearest as u64 } else { bytes as u64 }
    }

    /// The two points whose line counts up to the point at this position.
    fn segment(&self, at: usize) -> [(f64, f64); 2] {
        let high = at.clamp(1, self.points.len().max(2) - 1);
        let number = |at: usize| self.points.get(at).map_or((1.0, 1.0), |point| (point.0 as f64, point.1));
        [number(high - 1), number(high)]
    }
}

/// The value at `x` of a straight line through two points over the logarithms of both coordinates.
fn line(x: f64, (x0, y0): (f64, f64), (x1, y1): (f64, f64)) -> f64 {
    let part = (x / x0).ln() / (x1 / x0).ln();
    y0 * (y1 / y0).powf(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_points_are_met_and_lines_go_on_beyond_them() {
        let curve = TransferCurve::new(vec![(4 * MIB, 4.0), (MIB, 2.0)]);
        assert!((curve.ms(MIB) - 2.0).abs() < 1e-12);
        assert!((curve.ms(2 * MIB) - 8f64.sqrt()).abs() < 1e-12);
        assert!((curve.ms(16 * MIB) - 8.0).abs() < 1e-12);
        assert!((curve.ms(MIB / 4) - 1.0).abs() < 1e-12);
        assert_eq!(curve.bytes_within(8.0), 16 * MIB);
        assert_eq!(curve.bytes_within(1.0), MIB / 4);
    }

    #[test]
    fn one_point_stands_for_its_speed() {
        let curve = TransferCurve::flat(0.04);
        assert!((curve.ms(64 * MIB) - 2.56).abs() < 1e-12);
        assert_eq!(curve.bytes_within(1.5), 75 * MIB / 2);
        assert_eq!(curve.ms(0), 0.0);
        assert_eq!(curve.bytes_within(f64::NAN), 0);
        assert_eq!(curve.bytes_within(-1.0), 0);
    }

    #[test]
    fn points_that_say_nothing_or_fall_are_left_out() {
        let curve =
            TransferCurve::new(vec![(0, 1.0), (8, f64::NAN), (16, 1.0), (32, 0.5), (64, 2.0), (64, 3.0)]);
        assert_eq!(Vec::from(curve), [(16, 1.0), (64, 2.0)]);
        assert_eq!(TransferCurve::new(Vec::new()), TransferCurve::default());
    }

    #[test]
    fn beyond_a_chunk_time_is_proportional_to_size() {
        let link = LinkCurve::default();
        let curve = TransferCurve::of_link(&link, 16 * MIB);
        assert!((curve.ms(2 * MIB) - link.copy_ms(2 * MIB)).abs() < 1e-9);
        assert!((curve.ms(160 * MIB) - 10.0 * link.copy_ms(16 * MIB)).abs() < 1e-9);
    }
}
