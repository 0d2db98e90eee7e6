using System;
using System.Diagnostics;
using System.Globalization;
using Quire;

/// <summary>
/// Decodes tokens through the binding and says how long it took: one side of the comparison with C. Arguments: the
/// model, and how many tokens. It prints {"ready":true}, then for each line of its input one measurement.
/// </summary>
internal static class Overhead
{
    private static void Main(string[] arguments)
    {
        int count = int.Parse(arguments[1], CultureInfo.InvariantCulture);
        using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1 }))
        using (Model model = runtime.LoadModel(arguments[0]))
        using (Session session = model.CreateSession(new SessionOptions
        {
            Strategy = "full",
            Overflow = OverflowPolicy.Extrapolate
        }))
        {
            session.Feed("Once upon a time");
            session.Prefill();
            long prefilled = session.TokenCount;
            Console.WriteLine("{\"ready\":true}");
            while (Console.ReadLine() != null)
            {
                session.Truncate(prefilled);
                Console.WriteLine(Measure(session, count));
            }
        }
    }

    private static string Measure(Session session, int count)
    {
        var options = new StreamOptions { MaxTokens = count, IgnoreEos = true };
        int tokens = 0, length = 0;
        var watch = Stopwatch.StartNew();
        using (EventStream stream = session.Open(options))
        {
            foreach (Event next in stream)
            {
                length += next.Text.Length;
                if (next.Kind == EventKind.Token) tokens++;
            }
            watch.Stop();
        }
        if (tokens != count || length == 0) throw new InvalidOperationException(tokens + " tokens");
        // Mono and .NET Standard have no count of objects: only of bytes, and that not on every runtime.
        return string.Format(CultureInfo.InvariantCulture, "{{\"tokens\":{0},\"seconds\":{1:R},\"allocations\":null}}",
            tokens, watch.Elapsed.TotalSeconds);
    }
}
