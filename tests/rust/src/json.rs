//! A reader of JSON, for the files of the conformance suite and for what the library describes as JSON.

use std::iter::Peekable;
use std::str::Chars;

/// Integers are apart from numbers with a fraction, since the suite compares them exactly.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Integer(i64),
    Number(f64),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// The text's value. Panics where it is no JSON.
    pub fn parse(text: &str) -> Json {
        let mut reader = Reader(text.chars().peekable());
        let value = reader.value();
        assert_eq!(reader.next_char(), None, "something follows the value");
        value
    }

    /// The value of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.entries().iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The value of a key that must be there.
    pub fn at(&self, key: &str) -> &Json {
        self.get(key).unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    pub fn entries(&self) -> &[(String, Json)] {
        match self {
            Json::Object(entries) => entries,
            other => panic!("no object: {other:?}"),
        }
    }

    pub fn items(&self) -> &[Json] {
        match self {
            Json::Array(items) => items,
            other => panic!("no array: {other:?}"),
        }
    }

    pub fn text(&self) -> &str {
        match self {
            Json::Text(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    pub fn integer(&self) -> i64 {
        match self {
            Json::Integer(value) => *value,
            other => panic!("no integer: {other:?}"),
        }
    }

    pub fn number(&self) -> f64 {
        match self {
            Json::Integer(value) => *value as f64,
            Json::Number(value) => *value,
            other => panic!("no number: {other:?}"),
        }
    }

    pub fn bool(&self) -> bool {
        match self {
            Json::Bool(value) => *value,
            other => panic!("no truth value: {other:?}"),
        }
    }

    pub fn ids(&self) -> Vec<i32> {
        self.items().iter().map(|id| id.integer() as i32).collect()
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Json {
        Json::Text(text.to_string())
    }
}

impl From<i64> for Json {
    fn from(value: i64) -> Json {
        Json::Integer(value)
    }
}

impl From<i32> for Json {
    fn from(value: i32) -> Json {
        Json::Integer(value.into())
    }
}

impl From<f64> for Json {
    fn from(value: f64) -> Json {
        Json::Number(value)
    }
}

impl<T: Into<Json>> FromIterator<T> for Json {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Json {
        Json::Array(items.into_iter().map(Into::into).collect())
    }
}

struct Reader<'a>(Peekable<Chars<'a>>);

impl Reader<'_> {
    /// The next character that is no white space, without taking it.
    fn next_char(&mut self) -> Option<char> {
        while self.0.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        self.0.peek().copied()
    }

    /// Takes the next character if it is this one.
    fn take(&mut self, wanted: char) -> bool {
        self.next_char() == Some(wanted) && self.0.next().is_some()
    }

    fn expect(&mut self, wanted: char) {
        assert!(self.take(wanted), "{wanted} expected before {:?}", self.0.peek());
    }

    fn value(&mut self) -> Json {
        match self.next_char() {
            Some('{') => Json::Object(self.list('{', '}', |reader| {
                let key = reader.string();
                reader.expect(':');
                (key, reader.value())
            })),
            Some('[') => Json::Array(self.list('[', ']', Reader::value)),
            Some('"') => Json::Text(self.string()),
            _ => self.word(),
        }
    }

    fn list<T>(&mut self, open: char, close: char, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut items = Vec::new();
        self.expect(open);
        if self.take(close) {
            return items;
        }
        loop {
            items.push(item(self));
            if self.take(close) {
                return items;
            }
            self.expect(',');
        }
    }

    /// A number, or a value that is a word.
    fn word(&mut self) -> Json {
        let mut word = String::new();
        while let Some(c) = self.0.next_if(|c| c.is_ascii_alphanumeric() || "+-.".contains(*c)) {
            word.push(c);
        }
        match word.as_str() {
            "null" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            number => match number.parse() {
                Ok(value) => Json::Integer(value),
                Err(_) => Json::Number(number.parse().unwrap_or_else(|_| panic!("no value: {number:?}"))),
            },
        }
    }

    fn string(&mut self) -> String {
        let mut text = String::new();
        self.expect('"');
        loop {
            match self.0.next().expect("a text ends") {
                '"' => return text,
                '\\' => text.push(self.escape()),
                c => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> char {
        match self.0.next().expect("an escape has a letter") {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                let first = self.unit();
                if !(0xD800..0xDC00).contains(&first) {
                    return char::from_u32(first).expect("a surrogate has a pair");
                }
                self.expect('\\');
                self.expect('u');
                let second = self.unit();
                char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)).expect("a pair of surrogates")
            }
            c => c,
        }
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> u32 {
        let digits: String = self.0.by_ref().take(4).collect();
        u32::from_str_radix(&digits, 16).expect("four hexadecimal digits")
    }
}
