//! Costs side by side, and whether they grow faster than the logarithm of the number of nodes.

use super::{Case, Costs, Each, Size};
use crate::net::LATEST;
use crate::store::{LATEST_REQUEST, LATEST_WATCH};
use ftd_core::Policy;
use std::fmt;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Simulated time from the failure (of a cut: from its end) until all ranks compute.
    Time,
    /// … until every agent knows that, and people are told.
    Told,
    /// The first time where no packet and no request takes much longer than others.
    EvenTime,
    /// The second one there.
    EvenTold,
    /// Messages without heartbeats and what answers them.
    Messages,
    /// Heartbeats, and what answers them.
    Beats,
    /// Bytes without records.
    Kilobytes,
    /// Bytes of the longest message that is no record.
    Longest,
    /// Bytes of records.
    Records,
    /// Store operations.
    Requests,
    /// Processor time, but for planning.
    Processor,
    /// Processor time of planning.
    Planning,
    /// Memory without the record.
    Memory,
    /// Memory of the record.
    Record,
}

impl Column {
    /// All of them.
    pub const ALL: [Column; 14] = [
        Column::Time,
        Column::Told,
        Column::EvenTime,
        Column::EvenTold,
        Column::Messages,
        Column::Beats,
        Column::Kilobytes,
        Column::Longest,
        Column::Records,
        Column::Requests,
        Column::Processor,
        Column::Planning,
        Column::Memory,
        Column::Record,
    ];

    fn title(self) -> &'static str {
        match self {
            Column::Time => "ms until all compute",
            Column::Told => "ms until people are told",
            Column::EvenTime => "ms until all compute, evenly",
            Column::EvenTold => "ms until people are told, evenly",
            Column::Messages => "messages",
            Column::Beats => "heartbeats",
            Column::Kilobytes => "kB",
            Column::Longest => "kB of the longest",
            Column::Records => "kB of records",
            Column::Requests => "store operations",
            Column::Processor => "ms of processor",
            Column::Planning => "ms of planning",
            Column::Memory => "kB of memory",
            Column::Record => "kB of record",
        }
    }

    /// The record's own bytes and its planning may grow as they like. Of the times those are bound that show the protocol's growth: with
    /// late packets, how late the latest of many is shows as well, and [`too_late`](Table::too_late) looks after that.
    pub fn is_bound(self) -> bool {
        !matches!(self, Column::Records | Column::Record | Column::Planning | Column::Time | Column::Told)
    }

    /// It is taken by a clock, and not counted.
    pub fn is_timed(self) -> bool {
        matches!(self, Column::Processor | Column::Planning)
    }

    fn cell(self, costs: &Costs) -> String {
        let Each { mean, most } = costs.of(self);
        let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        if self.is_alone() { number(mean) } else { format!("{} ({})", number(mean), number(most)) }
    }

    /// One value for all nodes.
    fn is_alone(self) -> bool {
        matches!(self, Column::Time | Column::Told | Column::EvenTime | Column::EvenTold | Column::Record)
    }
}

/// What was measured of one failure in clusters of several sizes.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<(Case, Vec<(Size, Costs)>)>,
}

impl Table {
    /// Adds a row.
    pub fn add(&mut self, case: Case, size: Size, costs: Costs) {
        match self.rows.iter_mut().find(|(other, _)| *other == case) {
            Some((_, rows)) => rows.push((size, costs)),
            None => self.rows.push((case, vec![(size, costs)])),
        }
    }

    /// The columns that grow faster from one cluster to the next larger one than the logarithm of the number of nodes: on the
    /// average, or for the node that pays most.
    pub fn too_fast(&self, columns: impl Fn(Column) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        let steps = self.rows.iter().flat_map(|(case, rows)| rows.windows(2).map(move |step| (case, step)));
        for (case, step) in steps {
            let [first, last] = [&step[0], &step[1]];
            let bound = logarithms(first.0, last.0);
            for column in Column::ALL.into_iter().filter(|column| column.is_bound() && columns(*column)) {
                let Each { mean, most } = growth(column, &first.1, &last.1);
                // Twice of something and then thrice is as fast as from 100 nodes to 1000, but for what rounding makes of it.
                if mean.max(most) > bound + f64::EPSILON * 4.0 {
                    found.push(format!(
                        "{case}, from {} to {} nodes of {} slots: {} grow by {mean:.2} ({most:.2} for the node that pays most), the \
                         logarithm of n by {bound:.2}",
                        first.0.nodes,
                        last.0.nodes,
                        last.0.slots,
                        column.title()
                    ));
                }
            }
        }
        found
    }

    /// The times that are longer than where nothing is late by more than late packets explain: as long as if, of all that must happen one
    /// after the other, each had been as late as anything can be.
    pub fn too_late(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (case, size, costs) in
            self.rows.iter().flat_map(|(case, rows)| rows.iter().map(move |(size, costs)| (case, size, costs)))
        {
            for (column, even, rounds) in [(Column::Time, Column::EvenTime, 1), (Column::Told, Column::EvenTold, 2)] {
                let (ms, limit) = (costs.of(column).mean, costs.of(even).mean + lateness(*size, rounds));
                if ms > limit {
                    let Size { nodes, slots } = size;
                    found.push(format!(
                        "{case}, {nodes} nodes of {slots} slots: {} {ms:.0}, and not {limit:.0}",
                        column.title()
                    ));
                }
            }
        }
        found
    }
}

/// By how much a recovery may take longer, in milliseconds, where packets and requests are late: a write, its answer or a watch, a record
/// that a neighbour passes on, a heartbeat and its answer, a reading of the record; and a word that goes up the tree and down again, or two.
fn lateness(size: Size, rounds: u32) -> f64 {
    let fan_out = Policy::default().fan_out;
    let (mut levels, mut reached) = (0, 1u64);
    while reached < u64::from(size.nodes) {
        (levels, reached) = (levels + 1, reached * u64::from(fan_out) + 1);
    }
    let once = 2 * LATEST_REQUEST + LATEST_WATCH + 3 * LATEST;
    (once + u64::from(2 * levels * rounds) * LATEST) as f64 / 1e3
}

/// By how much a column grows.
fn growth(column: Column, first: &Costs, last: &Costs) -> Each {
    let (first, last) = (first.of(column), last.of(column));
    let times = |first: f64, last: f64| if first == last { 1.0 } else { last / first };
    Each { mean: times(first.mean, last.mean), most: times(first.most, last.most) }
}

/// By how much the logarithm of the number of nodes does.
fn logarithms(first: Size, last: Size) -> f64 {
    f64::from(last.nodes).ln() / f64::from(first.nodes).ln()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles: Vec<&str> = Column::ALL.into_iter().map(Column::title).collect();
        writeln!(f, "| failure | nodes × slots | {} |", titles.join(" | "))?;
        writeln!(f, "| --- | --- |{}", " --- |".repeat(titles.len()))?;
        for (case, rows) in &self.rows {
            for (Size { nodes, slots }, costs) in rows {
                let cells: Vec<String> = Column::ALL.into_iter().map(|column| column.cell(costs)).collect();
                writeln!(f, "| {case} | {nodes} × {slots} | {} |", cells.join(" | "))?;
            }
            for step in rows.windows(2) {
                let [first, last] = [&step[0], &step[1]];
                let grows = |column: Column| {
                    let Each { mean, most } = growth(column, &first.1, &last.1);
                    if column.is_alone() { format!("×{mean:.2}") } else { format!("×{mean:.2} (×{most:.2})") }
                };
                let cells: Vec<String> = Column::ALL.into_iter().map(grows).collect();
                writeln!(
                    f,
                    "| | {} growth; log n ×{:.2} | {} |",
                    last.0.nodes,
                    logarithms(first.0, last.0),
                    cells.join(" | ")
                )?;
            }
        }
        Ok(())
    }
}
