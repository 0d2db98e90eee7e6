using System;
using System.Collections.Generic;
using System.Globalization;
using System.Text;

namespace Quire.Tests
{
    /// <summary>
    /// Reads JSON into Dictionary, List, string, long, double, bool and null. The test's own because neither Mono's
    /// small packages nor .NET Standard 2.0 have a reader.
    /// </summary>
    internal sealed class Json
    {
        private readonly string text;
        private int at;

        private Json(string text)
        {
            this.text = text;
        }

        internal static object Read(string text)
        {
            var reader = new Json(text);
            object value = reader.Value();
            if (reader.Peek() != '\0') throw reader.Wrong();
            return value;
        }

        internal static Dictionary<string, object> ReadObject(string text)
        {
            return (Dictionary<string, object>)Read(text);
        }

        private char Peek()
        {
            while (at < text.Length && char.IsWhiteSpace(text[at])) at++;
            return at < text.Length ? text[at] : '\0';
        }

        private void Take(char expected)
        {
            if (Peek() != expected) throw Wrong();
            at++;
        }

        private FormatException Wrong()
        {
            return new FormatException("JSON is wrong at " + at);
        }

        private object Value()
        {
            switch (Peek())
            {
                case '{': return Object();
                case '[': return Array();
                case '"': return String();
                case 't': return Word("true", true);
                case 'f': return Word("false", false);
                case 'n': return Word("null", null);
                default: return Number();
            }
        }

        private object Word(string word, object value)
        {
            if (string.CompareOrdinal(text, at, word, 0, word.Length) != 0) throw Wrong();
            at += word.Length;
            return value;
        }

        private object Number()
        {
            int begin = at;
            while (at < text.Length && "+-.eE0123456789".IndexOf(text[at]) >= 0) at++;
            string number = text.Substring(begin, at - begin);
            if (long.TryParse(number, NumberStyles.AllowLeadingSign, CultureInfo.InvariantCulture, out long whole))
                return whole;
            return double.Parse(number, NumberStyles.Float, CultureInfo.InvariantCulture);
        }

        private string String()
        {
            Take('"');
            var result = new StringBuilder();
            while (text[at] != '"')
            {
                char next = text[at++];
                result.Append(next == '\\' ? Escaped() : next);
            }
            at++;
            return result.ToString();
        }

        private char Escaped()
        {
            char kind = text[at++];
            if (kind == 'u')
            {
                at += 4;
                return (char)ushort.Parse(text.Substring(at - 4, 4), NumberStyles.HexNumber);
            }
            int index = "\"\\/bfnrt".IndexOf(kind);
            if (index < 0) throw Wrong();
            return "\"\\/\b\f\n\r\t"[index];
        }

        private List<object> Array()
        {
            Take('[');
            var result = new List<object>();
            while (Peek() != ']')
            {
                if (result.Count > 0) Take(',');
                result.Add(Value());
            }
            at++;
            return result;
        }

        private Dictionary<string, object> Object()
        {
            Take('{');
            var result = new Dictionary<string, object>();
            while (Peek() != '}')
            {
                if (result.Count > 0) Take(',');
                Peek();
                string name = String();
                Take(':');
                result.Add(name, Value());
            }
            at++;
            return result;
        }
    }
}
