//! What a recovery costs a node, and several recoveries of one kind.

use super::table::Column;
use std::collections::BTreeMap;

/// What something costs a node: on the average, and the one that pays most.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Each {
    /// The average.
    pub mean: f64,
    /// The most.
    pub most: f64,
}

impl Each {
    /// Of all nodes.
    pub fn of(values: impl Iterator<Item = f64>) -> Each {
        let (mut count, mut sum, mut most) = (0.0, 0.0, 0f64);
        for value in values {
            (count, sum, most) = (count + 1.0, sum + value, most.max(value));
        }
        Each { mean: if count > 0.0 { sum / count } else { 0.0 }, most }
    }

    /// One value for all nodes.
    pub fn alone(value: f64) -> Each {
        Each { mean: value, most: value }
    }
}

/// What one recovery costs; what was not measured is 0.
#[derive(Debug, Clone, Default)]
pub struct Costs(BTreeMap<Column, Each>);

impl Costs {
    /// What this column says.
    pub fn of(&self, column: Column) -> Each {
        self.0.get(&column).copied().unwrap_or_default()
    }

    /// It says this.
    pub fn put(&mut self, column: Column, each: Each) {
        self.0.insert(column, each);
    }

    /// Of each column the median of those that have it.
    pub fn median(all: &[Costs]) -> Costs {
        let of = |column: &Column| {
            let values = || all.iter().filter_map(|costs| costs.0.get(column));
            values().next()?;
            let [mean, most] = [|each: &Each| each.mean, |each: &Each| each.most].map(|of| median(values().map(of)));
            Some((*column, Each { mean, most }))
        };
        Costs(Column::ALL.iter().filter_map(of).collect())
    }
}

/// The value in the middle; of an even number the greater one.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
