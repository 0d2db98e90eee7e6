//! Rows of numbers.

/// Rows of equal length, such as the logits of several tokens.
///
/// ```no_run
/// # fn run(session: quire::Session) -> quire::Result<()> {
/// let logits = session.logits(0, 4)?; // of the first four tokens
/// assert_eq!(logits.n_rows(), 4);
/// let best = logits.row(0).iter().cloned().fold(f32::MIN, f32::max);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix<T> {
    n_rows: usize,
    n_columns: usize,
    values: Vec<T>,
}

impl<T> Matrix<T> {
    /// `values` has `n_rows` rows one after the other.
    pub(crate) fn new(n_rows: usize, values: Vec<T>) -> Matrix<T> {
        Matrix { n_rows, n_columns: values.len().checked_div(n_rows).unwrap_or(0), values }
    }

    /// How many rows there are.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// How long each row is.
    pub fn n_columns(&self) -> usize {
        self.n_columns
    }

    /// One row. Panics where there is no such row.
    pub fn row(&self, index: usize) -> &[T] {
        assert!(index < self.n_rows, "row {index} of {}", self.n_rows);
        &self.values[index * self.n_columns..(index + 1) * self.n_columns]
    }

    /// All rows, the first one first.
    pub fn rows(&self) -> impl Iterator<Item = &[T]> {
        (0..self.n_rows).map(|index| self.row(index))
    }

    /// The numbers of all rows one after the other.
    pub fn into_vec(self) -> Vec<T> {
        self.values
    }
}
