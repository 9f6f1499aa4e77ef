//! What the pager counts: since the ring was made, and in one pass.

/// What happened since the ring was made; read by the report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Uses that began.
    pub uses: u64,
    /// Hits served in place that moved nothing.
    pub visits: u64,
    /// Hits that were pointed at the view: doubtful ones, and uses whose pages could not be had.
    pub redirects: u64,
    /// Uses of another than the next unit in order.
    pub mispredictions: u64,
    /// Loads on the demand stream.
    pub demand_loads: u64,
    /// Uses whose pages could not be had.
    pub conflicts: u64,
    /// Pages copied in, on both streams.
    pub pages_in: u64,
    /// Pages written back.
    pub pages_back: u64,
}

/// How a pass compared with its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PassTally {
    /// Every use of the order began, in turn.
    pub followed: bool,
    /// Loads that nobody foresaw.
    pub demand_loads: u64,
    /// Hits that were pointed at the view.
    pub redirects: u64,
}
