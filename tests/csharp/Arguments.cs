using System;
using System.Collections.Generic;
using System.Linq;

namespace Quire.Tests
{
    /// <summary>The arguments of a step, by name; those that are not there have their default.</summary>
    internal sealed class Arguments
    {
        private readonly Dictionary<string, object> values;
        private readonly HashSet<string> used = new HashSet<string>();

        internal Arguments(Dictionary<string, object> values)
        {
            this.values = values;
        }

        internal bool Has(string name)
        {
            return values.ContainsKey(name);
        }

        /// <summary>Throws for arguments that the runner did not look at: it would not do what they say.</summary>
        internal void AllUsed()
        {
            string[] rest = values.Keys.Where(name => !used.Contains(name)).ToArray();
            if (rest.Length > 0) throw new NotSupportedException("unknown: " + string.Join(", ", rest));
        }

        internal string Text(string name)
        {
            return (string)Get(name);
        }

        internal long Long(string name)
        {
            return (long)(Get(name) ?? 0L);
        }

        internal int Int(string name)
        {
            return (int)Long(name);
        }

        internal float Float(string name)
        {
            return Convert.ToSingle(Get(name) ?? 0L);
        }

        internal bool Bool(string name, bool otherwise)
        {
            return (bool)(Get(name) ?? otherwise);
        }

        internal List<object> List(string name)
        {
            return (List<object>)Get(name);
        }

        internal IEnumerable<List<object>> Lists(string name)
        {
            return List(name).Cast<List<object>>();
        }

        internal int[] Ids(string name)
        {
            return List(name)?.Select(id => (int)(long)id).ToArray();
        }

        internal Arguments Inner(string name)
        {
            return new Arguments((Dictionary<string, object>)Get(name) ?? new Dictionary<string, object>());
        }

        internal TextFlags TextFlags()
        {
            return (Bool("parse_special", false) ? Quire.TextFlags.ParseSpecial : 0)
                | (Bool("add_bos", true) ? 0 : Quire.TextFlags.NoBos);
        }

        /// <summary>A member of an enum by its name in the suite: "max_tokens".</summary>
        internal T Constant<T>(string name)
        {
            string text = Text(name);
            if (text == null) return default(T);
            return (T)Enum.GetValues(typeof(T)).Cast<object>().Single(member =>
                string.Equals(member.ToString().Replace("_", ""), text.Replace("_", ""), StringComparison.OrdinalIgnoreCase));
        }

        private object Get(string name)
        {
            used.Add(name);
            return values.TryGetValue(name, out object value) ? value : null;
        }
    }
}
