//! Costs side by side, and whether they grow faster than the logarithm of the number of nodes.

use super::{Case, Costs, Each, Size};
use std::fmt;

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Simulated time.
    Time,
    /// Messages without heartbeats.
    Messages,
    /// Heartbeats.
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
    pub const ALL: [Column; 11] = [
        Column::Time,
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

    /// The record's own bytes and its planning may grow as they like.
    pub fn is_bound(self) -> bool {
        !matches!(self, Column::Records | Column::Record | Column::Planning)
    }

    /// What it says.
    pub fn of(self, costs: &Costs) -> Each {
        let alone = |value| Each { mean: value, most: value };
        match self {
            Column::Time => alone(costs.time),
            Column::Messages => costs.messages,
            Column::Beats => costs.beats,
            Column::Kilobytes => costs.kilobytes,
            Column::Longest => costs.longest,
            Column::Records => costs.records,
            Column::Requests => costs.requests,
            Column::Processor => costs.processor,
            Column::Planning => costs.planning,
            Column::Memory => costs.memory,
            Column::Record => alone(costs.record),
        }
    }

    fn cell(self, costs: &Costs) -> String {
        let Each { mean, most } = self.of(costs);
        let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        if self.is_alone() { number(mean) } else { format!("{} ({})", number(mean), number(most)) }
    }

    /// One value for all nodes.
    fn is_alone(self) -> bool {
        matches!(self, Column::Time | Column::Record)
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

    /// Of these columns those that grow faster from the smallest to the largest cluster than the logarithm of the number of nodes:
    /// on the average, or for the node that pays most.
    pub fn too_fast(&self, columns: &[Column]) -> Vec<String> {
        let mut found = Vec::new();
        for (case, rows) in &self.rows {
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
            let bound = logarithms(first.0, last.0);
            for column in columns.iter().filter(|column| column.is_bound()) {
                let Each { mean, most } = growth(*column, &first.1, &last.1);
                if mean.max(most) > bound {
                    let title = column.title();
                    found.push(format!(
                        "{case}: {title} grow by {mean:.2} ({most:.2} for the node that pays most), the logarithm of n by {bound:.2}"
                    ));
                }
            }
        }
        found
    }
}

/// By how much a column grows.
fn growth(column: Column, first: &Costs, last: &Costs) -> Each {
    let (first, last) = (column.of(first), column.of(last));
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
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
            if first.0.nodes < last.0.nodes {
                let grows = |column: Column| {
                    let Each { mean, most } = growth(column, &first.1, &last.1);
                    if column.is_alone() { format!("×{mean:.2}") } else { format!("×{mean:.2} (×{most:.2})") }
                };
                let cells: Vec<String> = Column::ALL.into_iter().map(grows).collect();
                writeln!(f, "| | growth; log n ×{:.2} | {} |", logarithms(first.0, last.0), cells.join(" | "))?;
            }
        }
        Ok(())
    }
}
