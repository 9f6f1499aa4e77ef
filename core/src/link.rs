//! How fast bytes go from pinned host memory to the GPU, by the size of one copy.
//! Measuring it is the interposer's job; the planner and the simulator only read the curve.

use serde::{Deserialize, Serialize};

use crate::units::{KIB, MIB};

/// One measured point of a [`LinkCurve`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LinkPoint {
    /// Bytes of one copy.
    pub copy_bytes: u64,
    /// Throughput of such copies back to back, in GB/s (1e9 bytes a second).
    pub gb_per_s: f64,
}

/// Throughput of host-to-device copies by their size; between two points it is interpolated over the
/// logarithm of the size, beyond the ends it is flat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<LinkPoint>", into = "Vec<LinkPoint>")]
pub struct LinkCurve {
    points: Vec<LinkPoint>,
}

impl From<Vec<LinkPoint>> for LinkCurve {
    fn from(points: Vec<LinkPoint>) -> Self {
        LinkCurve::new(points)
    }
}

impl From<LinkCurve> for Vec<LinkPoint> {
    fn from(curve: LinkCurve) -> Self {
        curve.points
    }
}

impl Default for LinkCurve {
    /// PCIe Gen5 x16 as measured on one H200: the figure used until the machine's own link has been measured.
    fn default() -> Self {
        let measured = [
            (64 * KIB, 17.0),
            (256 * KIB, 36.0),
            (MIB, 48.6),
            (2 * MIB, 51.8),
            (8 * MIB, 54.5),
            (32 * MIB, 55.2),
            (256 * MIB, 55.4),
        ];
        LinkCurve::new(
            measured.into_iter().map(|(copy_bytes, gb_per_s)| LinkPoint { copy_bytes, gb_per_s }).collect(),
        )
    }
}

impl LinkCurve {
    /// A curve through these points, in any order. Points that say nothing (size 0, speed not above 0, not a
    /// number) are left out, of two points of one size the faster one stays; if none is left, the default
    /// curve is taken.
    #[must_use]
    pub fn new(mut points: Vec<LinkPoint>) -> Self {
        points.retain(|p| p.copy_bytes > 0 && p.gb_per_s.is_finite() && p.gb_per_s > 0.0);
        if points.is_empty() {
            return LinkCurve::default();
        }
        points.sort_by(|a, b| a.copy_bytes.cmp(&b.copy_bytes).then(b.gb_per_s.total_cmp(&a.gb_per_s)));
        points.dedup_by_key(|p| p.copy_bytes);
        LinkCurve { points }
    }

    /// A link of one speed for every size, in GB/s (for what-if questions such as `--link 25GB/s`).
    #[must_use]
    pub fn flat(gb_per_s: f64) -> Self {
        LinkCurve::new(vec![LinkPoint { copy_bytes: 1, gb_per_s }])
    }

    /// The points, by ascending size.
    #[must_use]
    pub fn points(&self) -> &[LinkPoint] {
        &self.points
    }

    /// Throughput of copies of this many bytes, in GB/s.
    #[must_use]
    pub fn gb_per_s(&self, copy_bytes: u64) -> f64 {
        let above = self.points.partition_point(|p| p.copy_bytes < copy_bytes);
        match (above.checked_sub(1).and_then(|i| self.points.get(i)), self.points.get(above)) {
            (None, Some(only)) | (Some(only), None) => only.gb_per_s,
            (Some(low), Some(high)) => {
                let low_log = (low.copy_bytes as f64).ln();
                let high_log = (high.copy_bytes as f64).ln();
                let part = ((copy_bytes as f64).ln() - low_log) / (high_log - low_log);
                low.gb_per_s + part * (high.gb_per_s - low.gb_per_s)
            }
            // `new` keeps at least one point.
            (None, None) => f64::MIN_POSITIVE,
        }
    }

    /// Throughput of copies of this many bytes, in bytes per millisecond.
    #[must_use]
    pub fn bytes_per_ms(&self, copy_bytes: u64) -> f64 {
        self.gb_per_s(copy_bytes) * 1e6
    }

    /// Time of one copy of this many bytes, in milliseconds.
    #[must_use]
    pub fn copy_ms(&self, copy_bytes: u64) -> f64 {
        if copy_bytes == 0 { 0.0 } else { copy_bytes as f64 / self.bytes_per_ms(copy_bytes) }
    }

    /// Times of one copy of 0 to so many pages of this many bytes, in milliseconds, by its number of pages.
    pub(crate) fn copies_ms(&self, most_pages: u64, page_bytes: u64) -> Vec<f64> {
        (0..=most_pages).map(|pages| self.copy_ms(pages * page_bytes)).collect()
    }

    /// The best throughput of any size, in bytes per millisecond: what the bound is computed with.
    #[must_use]
    pub fn peak_bytes_per_ms(&self) -> f64 {
        self.peak_gb_per_s() * 1e6
    }

    /// The same in GB/s.
    #[must_use]
    pub fn peak_gb_per_s(&self) -> f64 {
        self.points.iter().fold(f64::MIN_POSITIVE, |best, p| best.max(p.gb_per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_points_are_met_exactly_and_the_ends_are_flat() {
        let link = LinkCurve::default();
        assert!((link.gb_per_s(2 * MIB) - 51.8).abs() < 1e-9);
        assert!((link.gb_per_s(1) - 17.0).abs() < 1e-9);
        assert!((link.gb_per_s(1 << 40) - 55.4).abs() < 1e-9);
        assert!((link.peak_bytes_per_ms() - 55.4e6).abs() < 1e-3);
    }

    #[test]
    fn between_two_points_speed_rises_with_the_logarithm_of_the_size() {
        let link = LinkCurve::default();
        assert!((link.gb_per_s(4 * MIB) - (51.8 + 54.5) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn points_that_say_nothing_are_left_out() {
        let point = |copy_bytes, gb_per_s| LinkPoint { copy_bytes, gb_per_s };
        let link = LinkCurve::new(vec![
            point(0, 9.0),
            point(8, f64::NAN),
            point(16, -1.0),
            point(32, 5.0),
            point(4, 2.0),
            point(4, 3.0),
        ]);
        assert_eq!(link.points(), [point(4, 3.0), point(32, 5.0)]);
        assert_eq!(LinkCurve::new(vec![point(1, 0.0)]), LinkCurve::default());
    }
}
