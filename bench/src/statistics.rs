//! Few, honest numbers out of many: medians, and how far they can be trusted without knowing the distribution.

use std::collections::BTreeMap;

/// What several runs say about one quantity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The middle one; the mean of the middle two of an even number.
    pub median: f64,
    /// Interval that holds the true median with at least 95 % probability, whatever the distribution is: two of the
    /// values themselves. Fewer than six values have none.
    pub interval: Option<(f64, f64)>,
    /// Smallest value.
    pub least: f64,
    /// Largest value.
    pub most: f64,
    /// How many values there were.
    pub count: usize,
}

/// `None` for no values, or for values that cannot be ordered.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let mut sorted = values.to_vec();
    if sorted.is_empty() || sorted.iter().any(|value| value.is_nan()) {
        return None;
    }
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let middle = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
    let interval = rank(count).map(|rank| (sorted[rank - 1], sorted[count - rank]));
    Some(Estimate { median: middle, interval, least: sorted[0], most: sorted[count - 1], count })
}

/// Rank k, from 1, of the order statistics that bound the median: the true median lies between the k-th smallest and
/// the k-th largest of n values unless fewer than k values fall on one side of it, and how many do is
/// binomial (n, 1/2).
fn rank(count: usize) -> Option<usize> {
    let half = 0.5_f64.powi(i32::try_from(count).ok()?);
    let (mut term, mut tail, mut rank) = (half, 0.0, 0);
    for below in 0..count {
        tail += term;
        if tail > 0.025 {
            break;
        }
        rank = below + 1;
        term *= (count - below) as f64 / (below + 1) as f64;
    }
    (rank > 0).then_some(rank)
}

/// Ratios of those pairs that were measured in the same round, in the order of the rounds. Rounds in which one of the
/// two is missing, or the second is not above zero, give none.
pub fn ratios(of: &BTreeMap<u32, f64>, to: &BTreeMap<u32, f64>) -> BTreeMap<u32, f64> {
    let pair = |(round, of): (&u32, &f64)| to.get(round).filter(|to| **to > 0.0).map(|to| (*round, of / to));
    of.iter().filter_map(pair).collect()
}

/// The values alone.
pub fn estimate_of(rounds: &BTreeMap<u32, f64>) -> Option<Estimate> {
    estimate(&rounds.values().copied().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_values_are_bounded_by_the_second_and_the_eighth() {
        let nine = [9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0];
        let got = estimate(&nine).expect("nine values");
        assert_eq!(
            got,
            Estimate { median: 5.0, interval: Some((2.0, 8.0)), least: 1.0, most: 9.0, count: 9 }
        );
    }

    /// Ranks of a published table of distribution-free intervals for the median at 95 %.
    #[test]
    fn ranks_are_those_of_the_table() {
        let table = [
            (5, None),
            (6, Some(1)),
            (8, Some(1)),
            (9, Some(2)),
            (11, Some(2)),
            (12, Some(3)),
            (20, Some(6)),
        ];
        for (count, expected) in table {
            assert_eq!(rank(count), expected, "{count} values");
        }
    }

    #[test]
    fn few_values_have_a_median_and_no_interval() {
        let got = estimate(&[4.0, 1.0]).expect("two values");
        assert_eq!((got.median, got.interval), (2.5, None));
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn pairs_are_of_the_same_round() {
        let of = BTreeMap::from([(0, 1.0), (1, 6.0), (3, 5.0)]);
        let to = BTreeMap::from([(0, 2.0), (1, 3.0), (2, 7.0), (3, 0.0)]);
        assert_eq!(ratios(&of, &to), BTreeMap::from([(0, 0.5), (1, 2.0)]));
    }
}
