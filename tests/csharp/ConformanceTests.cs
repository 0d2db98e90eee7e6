using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace Quire.Tests
{
    using Values = Dictionary<string, object>;

    /// <summary>The suite of all bindings, tests/conformance: the same tokens come out everywhere.</summary>
    internal sealed class ConformanceTests
    {
        [Test]
        private void AllFiles()
        {
            int cases = 0;
            foreach (string path in Directory.GetFiles(Path.Combine(Shared.Source, "tests/conformance"), "*.json"))
            {
                Values file = Json.ReadObject(File.ReadAllText(path));
                using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1 }))
                using (Model model = runtime.LoadModel(Path.Combine(Shared.Source, (string)file["model"])))
                {
                    foreach (Values described in ((List<object>)file["cases"]).Cast<Values>())
                    {
                        cases++;
                        Run(model, described, Path.GetFileName(path) + ", " + described["name"] + ": ");
                    }
                }
            }
            Check.True(cases > 20, cases + " cases are more than 20");
            Console.WriteLine(cases + " conformance cases");
        }

        private static void Run(Model model, Values described, string name)
        {
            string folder = Path.Combine(Path.GetTempPath(), "quire-" + Guid.NewGuid().ToString("N"));
            using (var steps = new ConformanceSteps(model, folder))
                foreach (Values step in ((List<object>)described["steps"]).Cast<Values>())
                    Run(steps, step, name + step["do"]);
        }

        private static void Run(ConformanceSteps steps, Values step, string name)
        {
            Values result;
            try
            {
                result = steps.Do(step);
            }
            catch (QuireException exception) when (step.ContainsKey("error"))
            {
                var error = new Arguments((Values)step["error"]);
                Check.Equal(error.Constant<Status>("status"), exception.Status, name);
                if (error.Has("offset")) Check.Equal(error.Long("offset"), exception.Offset, name);
                Check.Contains(error.Text("message") ?? "", exception.Description);
                error.AllUsed();
                return;
            }
            Check.True(!step.ContainsKey("error"), name + " failed");
            if (!step.ContainsKey("expect")) return;
            foreach (KeyValuePair<string, object> expected in (Values)step["expect"])
                Check.True(Agree(expected.Value, result[expected.Key]),
                    name + ": " + expected.Key + " is " + Describe(result[expected.Key]));
        }

        /// <summary>Numbers with a fraction agree to 1e-4, relative or absolute.</summary>
        private static bool Agree(object expected, object found)
        {
            if (expected is double number)
            {
                double other = Convert.ToDouble(found);
                return Math.Abs(number - other) <= 1e-4 * Math.Max(1, Math.Max(Math.Abs(number), Math.Abs(other)));
            }
            if (!(expected is List<object> list)) return Equals(expected, found);
            var items = (List<object>)found;
            return items.Count == list.Count && list.Zip(items, Agree).All(same => same);
        }

        private static string Describe(object value)
        {
            return value is List<object> list ? "[" + string.Join(", ", list.Select(Describe)) + "]" : "<" + value + ">";
        }
    }
}
