using System;
using System.Collections.Generic;
using Quire;

/// <summary>A client over the C# binding. Prints what ../README.md says.</summary>
internal static class Client
{
    private static void Main(string[] arguments)
    {
        using (var runtime = new Runtime(new RuntimeOptions { ThreadCount = 1 }))
        using (Model model = runtime.LoadModel(arguments[0]))
        using (Session session = model.CreateSession("dca"))
        {
            session.Feed("Once upon a time");
            var tokens = new List<int>();
            FinishReason finish = FinishReason.None;
            using (EventStream stream = session.Open(new StreamOptions { MaxTokens = 16, IgnoreEos = true }))
                foreach (Event next in stream)
                {
                    finish = next.FinishReason;
                    if (next.Kind == EventKind.Token) tokens.Add(next.Token);
                }
            Console.WriteLine(string.Join(" ", tokens));
            Console.WriteLine("{0} {1} {2}", finish == FinishReason.MaxTokens ? "MAX_TOKENS" : "another",
                session.TokenCount, session.PendingCount);
        }
        try
        {
            Strategies.Describe("full(wheels=3)", 4096);
        }
        catch (QuireException exception)
        {
            Console.WriteLine("{0} {1}", exception.Message.Split(':')[0], exception.Offset);
        }
    }
}
