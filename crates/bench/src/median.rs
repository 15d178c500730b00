//! Medians: one disturbed round does not change them.

use std::cmp::Ordering;

/// The middle value (of an even count, the upper of the two in the middle).
///
/// # Panics
/// If there are no values, or one of them is not a number.
pub fn median<T: PartialOrd + Copy>(values: Vec<T>) -> T {
    percentile(values, 50)
}

/// The value below which `percent` per cent of the values are.
///
/// # Panics
/// As [`median`].
pub fn percentile<T: PartialOrd + Copy>(mut values: Vec<T>, percent: usize) -> T {
    let compare = |a: &T, b: &T| -> Ordering { a.partial_cmp(b).expect("a measured value is a number") };
    values.sort_by(compare);
    values[values.len() * percent / 100]
}

/// The median of the ratios of each round: `ours[n] / theirs[n]`.
///
/// Not the ratio of the medians: the load of the machine changes from round to round, and hits both sides of
/// a round alike.
///
/// # Panics
/// As [`median`].
pub fn median_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_value_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4, 1, 3, 2]), 3);
        assert_eq!(percentile((0..200).collect(), 99), 198);
        assert_eq!(median_ratio(&[2.0, 9.0, 8.0], &[1.0, 3.0, 2.0]), 3.0);
    }
}
