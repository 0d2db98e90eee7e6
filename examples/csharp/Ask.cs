using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Threading;
using Quire;

/// <summary>
/// Reads a document and answers questions about it. Arguments: a model, a text file, and questions; without these each
/// line of the input is one. An answer is written as it comes. Ctrl-C ends the answer; while there is none, the program.
/// </summary>
internal static class Ask
{
    private static volatile CancellationTokenSource answer;

    private static int Main(string[] arguments)
    {
        if (arguments.Length < 2)
        {
            Console.Error.WriteLine("usage: Ask MODEL DOCUMENT [QUESTION...]");
            return 2;
        }
        Console.CancelKeyPress += (sender, press) =>
        {
            CancellationTokenSource current = answer;
            press.Cancel = current != null;
            current?.Cancel();
        };
        try
        {
            using (var runtime = new Runtime())
            using (Model model = runtime.LoadModel(arguments[0]))
            using (Session document = model.CreateSession("dca"))
            {
                document.Feed(File.ReadAllText(arguments[1]));
                document.Prefill();
                Console.Error.WriteLine("read {0} tokens", document.TokenCount);
                IEnumerable<string> questions = arguments.Length > 2 ? arguments.Skip(2) : Lines();
                foreach (string question in questions) Answer(document, question);
            }
            return 0;
        }
        catch (QuireException exception)
        {
            Console.Error.WriteLine(exception.Message);
            return 1;
        }
    }

    private static IEnumerable<string> Lines()
    {
        string line;
        while ((line = Console.ReadLine()) != null) yield return line;
    }

    /// <summary>In a fork, so that each question follows the document and not the question before.</summary>
    private static void Answer(Session document, string question)
    {
        var source = new CancellationTokenSource();
        using (Session session = document.Fork())
        {
            session.Feed(" " + question);
            answer = source;
            try
            {
                using (EventStream stream = session.Open(new StreamOptions { MaxTokens = 200 }))
                    foreach (Event next in stream.Read(source.Token)) Show(next);
                Console.WriteLine();
            }
            catch (OperationCanceledException)
            {
                Console.WriteLine(" (cancelled)");
            }
            finally
            {
                answer = null;
            }
        }
    }

    private static void Show(Event next)
    {
        if (next.Kind == EventKind.Prefill) Console.Error.WriteLine("read {0} of {1} tokens", next.Done, next.Total);
        if (next.Kind == EventKind.Warning || next.Kind == EventKind.Notice) Console.Error.WriteLine(next.Message);
        Console.Write(next.Text);
    }
}
