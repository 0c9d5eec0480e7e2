//! The configurations of a sweep: every combination of the axes' values.

use serde_json::Value;

use crate::scenario::{Axis, Override};

/// One configuration of a sweep: scenario paths and their values, in axis order.
pub type Setting = Vec<(String, Value)>;

/// More configurations than this are a slip of the hand.
pub const MOST_CONFIGURATIONS: usize = 1_000_000;

/// Every combination, the last axis changing fastest; one empty setting when there is no axis. `None` when
/// there are more than [`MOST_CONFIGURATIONS`].
pub fn combinations(axes: &[Axis]) -> Option<Vec<Setting>> {
    let mut count = 1usize;
    for axis in axes {
        count = count
            .checked_mul(axis.points.len())
            .filter(|&n| n <= MOST_CONFIGURATIONS)?;
    }
    let mut all: Vec<Setting> = vec![Vec::new()];
    for axis in axes {
        all = all
            .into_iter()
            .flat_map(|setting| {
                axis.settings().map(move |point| {
                    let mut longer = setting.clone();
                    longer.extend(point);
                    longer
                })
            })
            .collect();
    }
    Some(all)
}

/// The setting as overrides of the scenario.
pub fn overrides(setting: &Setting) -> Vec<Override> {
    setting
        .iter()
        .map(|(path, value)| Override::new(path, value.clone()))
        .collect()
}

/// A short name: the last part of each path with its value, as `max_num_seqs=16, tp=2`.
pub fn label(setting: &Setting) -> String {
    let parts: Vec<String> = setting
        .iter()
        .map(|(path, value)| {
            let name = path.rsplit('.').next().unwrap_or(path);
            match value {
                Value::String(text) => format!("{name}={text}"),
                other => format!("{name}={other}"),
            }
        })
        .collect();
    if parts.is_empty() {
        "as written".to_owned()
    } else {
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(path: &str, values: &[i64]) -> Axis {
        Axis {
            paths: vec![path.into()],
            points: values.iter().map(|&v| vec![v.into()]).collect(),
        }
    }

    #[test]
    fn the_last_axis_changes_fastest() {
        let all = combinations(&[axis("a.b", &[1, 2]), axis("c", &[3, 4, 5])]).unwrap();
        let labels: Vec<String> = all.iter().map(label).collect();
        assert_eq!(
            labels,
            [
                "b=1, c=3", "b=1, c=4", "b=1, c=5", "b=2, c=3", "b=2, c=4", "b=2, c=5"
            ]
        );
        assert_eq!(combinations(&[]).unwrap(), [Vec::new()]);
    }

    #[test]
    fn keys_of_one_axis_change_together() {
        let ratio = Axis {
            paths: vec!["p.groups".into(), "d.groups".into()],
            points: vec![vec![1.into(), 6.into()], vec![2.into(), 5.into()]],
        };
        let all = combinations(&[ratio, axis("tp", &[4, 8])]).unwrap();
        let values = |s: &Setting| s.iter().map(|(_, v)| v.as_i64().unwrap()).collect::<Vec<_>>();
        let values: Vec<_> = all.iter().map(values).collect();
        assert_eq!(values, [[1, 6, 4], [1, 6, 8], [2, 5, 4], [2, 5, 8]]);
        assert_eq!(all[0][1].0, "d.groups");
    }

    #[test]
    fn a_million_and_more_is_refused_before_it_is_built() {
        let wide: Vec<i64> = (0..1000).collect();
        assert!(combinations(&[axis("a", &wide), axis("b", &wide), axis("c", &[1, 2])]).is_none());
    }
}
