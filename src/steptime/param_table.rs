//! What the parameter vectors of all fitted models have in common: a table of names, units, bounds and priors, and a
//! vector in its order.

/// What is known of a parameter before anything is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spec<P> {
    /// Which.
    pub param: P,
    /// Name in fit files.
    pub name: &'static str,
    /// Unit; `1` for fractions.
    pub unit: &'static str,
    /// Smallest and largest value that is believed.
    pub bounds: (f64, f64),
    /// Median of the prior.
    pub prior: f64,
    /// Standard deviation of the prior's logarithm.
    pub prior_log_sd: f64,
}

/// The table of an enum of parameters, and the vector of all of them: one row a parameter, in the order of the enum.
macro_rules! parameter_table {
    (
        $param:ident, $count:ident;
        $(#[$of_specs:meta])*
        $specs:ident;
        $(#[$of_vector:meta])*
        $vector:ident;
        $($row:ident $name:literal $unit:literal $low:literal..$high:literal prior $prior:literal sd $sd:literal;)+
    ) => {
        /// Number of parameters.
        pub const $count: usize = [$($name),+].len();

        $(#[$of_specs])*
        pub const $specs: [$crate::steptime::param_table::Spec<$param>; $count] =
            [$($crate::steptime::param_table::Spec {
                param: $param::$row, name: $name, unit: $unit, bounds: ($low, $high), prior: $prior, prior_log_sd: $sd,
            }),+];

        impl $param {
            /// What is known of it.
            pub fn spec(self) -> &'static $crate::steptime::param_table::Spec<Self> {
                &$specs[self as usize]
            }

            /// The parameter of a name.
            pub fn named(name: &str) -> Option<Self> {
                $specs.iter().find(|s| s.name == name).map(|s| s.param)
            }
        }

        $(#[$of_vector])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $vector(pub [f64; $count]);

        impl Default for $vector {
            /// The medians of the priors.
            fn default() -> Self {
                Self($specs.map(|s| s.prior))
            }
        }

        impl std::ops::Index<$param> for $vector {
            type Output = f64;
            fn index(&self, p: $param) -> &f64 {
                &self.0[p as usize]
            }
        }

        impl std::ops::IndexMut<$param> for $vector {
            fn index_mut(&mut self, p: $param) -> &mut f64 {
                &mut self.0[p as usize]
            }
        }

        impl $vector {
            /// The first parameter outside its bounds (or not a number).
            pub fn out_of_bounds(&self) -> Option<(&'static $crate::steptime::param_table::Spec<$param>, f64)> {
                $specs
                    .iter()
                    .zip(self.0)
                    .find(|(s, v)| !(s.bounds.0..=s.bounds.1).contains(v))
            }

            /// Every parameter moved inside its bounds.
            #[must_use]
            pub fn clamped(mut self) -> Self {
                for (value, spec) in self.0.iter_mut().zip($specs) {
                    *value = value.clamp(spec.bounds.0, spec.bounds.1);
                }
                self
            }

            /// The values of a fit file's list; a parameter that it does not name stands at its prior.
            pub(super) fn of(fitted: &[$crate::steptime::fit_parts::FittedParameter]) -> Self {
                let mut out = Self::default();
                for p in fitted {
                    if let Some(param) = $param::named(&p.name) {
                        out[param] = p.value;
                    }
                }
                out
            }

            /// The draws of a fit file as vectors.
            pub(super) fn draws_of(draws: &[Vec<f64>]) -> Vec<Self> {
                let draws = draws.iter();
                draws
                    .filter_map(|d| Some(Self(d.as_slice().try_into().ok()?).clamped()))
                    .collect()
            }
        }

        #[cfg(test)]
        mod table_tests {
            use super::*;

            #[test]
            fn the_table_is_in_the_order_of_the_enum_and_its_priors_lie_within_bounds() {
                for (index, spec) in $specs.iter().enumerate() {
                    assert_eq!(spec.param as usize, index, "{}", spec.name);
                    assert_eq!($param::named(spec.name), Some(spec.param));
                    assert!(spec.prior_log_sd > 0.0);
                }
                assert_eq!($vector::default().out_of_bounds(), None);
                let mut wrong = $vector::default();
                wrong[$param::Join] = f64::NAN;
                assert_eq!(wrong.out_of_bounds().map(|(s, _)| s.name), Some("join"));
            }
        }
    };
}
pub(crate) use parameter_table;
